// The ladder: candidates in rows, stages in columns; a bar and a number in each cell. Everything is
// text; what a stage removed is told by a word, too.
export default {
  template: `<div class="hr-scroll"><table class="hr-ladder" v-if="view.columns">
    <caption class="hr-soft">{{ view.caption }}</caption>
    <thead><tr><th scope="col">candidate</th>
      <th v-for="c in view.columns" scope="col" :title="c.words">{{ c.title }}
        <div class="hr-soft">{{ c.number }}</div><div class="hr-soft">{{ c.entropy }}</div>
        <div class="hr-soft">{{ c.removed }}</div><div class="hr-soft">{{ c.mass }}</div></th><th scope="col"></th></tr></thead>
    <tbody><tr v-for="r in view.rows" :key="r.id" :class="{ 'hr-drawn': r.drawn }">
      <th scope="row" :title="'token ' + r.id"><span class="hr-mono hr-candidate">{{ r.text }}</span>
        <span v-if="r.drawn" class="hr-soft"> ◀ drawn</span></th>
      <td v-for="(p, i) in r.cells" :key="i" :data-p="p" :data-stage="view.columns[i].name">
        <template v-if="p !== null"><div class="hr-bar" :style="{ width: 'calc((100% - 16px) * ' + p + ')' }"></div>
        <span>{{ percent(p) }}</span></template>
        <span v-else class="hr-soft">{{ r.words[i] }}</span></td>
      <td><button class="hr-fork" :disabled="view.busy" @click="$emit('fork', r.id)"
        :aria-label="'Go on with ' + r.text + ' instead'">fork</button></td></tr></tbody>
  </table></div>`,
  props: { view: Object },
  emits: ["fork"],
  methods: {
    percent(p) {
      if (p >= 0.9995) return "100 %";
      if (p >= 0.001) return (100 * p).toFixed(1) + " %";
      return p >= 1e-6 ? Number((100 * p).toPrecision(2)) + " %" : "< 0.0001 %";
    },
  },
};
