// A slider: the browser's own, so keys, touch and screen readers are right from the start. Its words
// come from the page ("8,192", "off"), as a number alone would not say what it stands for.
export default {
  template: `<input type="range" class="hr-range" :min="low" :max="high" :step="step" :value="now"
    :aria-label="label" :aria-valuetext="words" @input="moved" />`,
  props: { label: String, low: Number, high: Number, step: Number, start: Number, words: String },
  emits: ["move"],
  data() { return { now: this.start }; },
  methods: {
    moved(event) {
      this.now = event.target.value;
      this.$emit("move", Number(event.target.value));
    },
  },
};
