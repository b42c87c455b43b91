// The KV cache as one letter per cell; runs of the same state are one span. A free cell is a dot.
export default {
  template: `<div class="hr-blocks" role="img" :aria-label="label"></div>`,
  props: { label: String },
  methods: {
    put(map) {
      const fragment = document.createDocumentFragment();
      for (const [run] of map.matchAll(/(.)\1*/g)) {
        const span = document.createElement("span");
        span.className = `hr-b${run[0]}`;
        span.textContent = run[0] === "f" ? "·".repeat(run.length) : run;
        fragment.append(span);
      }
      this.$el.replaceChildren(fragment);
    },
  },
};
