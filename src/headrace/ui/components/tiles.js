// Some figures with their names. put(values): texts in the same order.
export default {
  template: `<dl class="hr-tiles"><div v-for="([name, about], i) in names" :key="name" :title="about">
    <dt>{{ name }}</dt><dd :data-figure="name">{{ values[i] ?? "—" }}</dd></div></dl>`,
  props: { names: Array },
  data() { return { values: [] }; },
  methods: { put(values) { this.values = values; } },
};
