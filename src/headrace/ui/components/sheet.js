// A table whose rows change. put(rows): texts, row by row.
export default {
  template: `<div class="hr-scroll"><table class="hr-table" :style="{ minWidth: width }"><caption class="hr-hidden">{{ caption }}</caption>
    <thead><tr><th v-for="(c, i) in columns" :key="c" scope="col" :class="{ num: !left.includes(i) }">{{ c }}</th></tr></thead>
    <tbody><tr v-for="(row, j) in rows" :key="j"><td v-for="(cell, i) in row" :key="i"
      :class="{ num: !left.includes(i) }">{{ cell }}</td></tr>
      <tr v-if="!rows.length"><td :colspan="columns.length" class="hr-soft">{{ none }}</td></tr></tbody>
  </table></div>`,
  props: { columns: Array, caption: String, none: String, left: Array, width: String, start: Array },
  data() { return { rows: this.start ?? [] }; },
  watch: { start(rows) { this.rows = rows; } },
  methods: { put(rows) { this.rows = rows; } },
};
