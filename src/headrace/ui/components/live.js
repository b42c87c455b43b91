// What a live page shows next, in one message: each part names an element, what to do, and a value.
//   rows: lines of a chart's data set; options: of a chart; anything else: a method of the element.
export default {
  template: `<div hidden></div>`,
  created() { this.rows = {}; },
  methods: {
    take(parts) {
      for (const [id, what, value, keep] of parts) {
        const part = getElement(id);
        if (!part) continue;
        if (what === "rows") this.append(part, id, value, keep);
        else if (what === "options") part.chart?.setOption(value);
        else part[what](value);
      }
    },
    append(part, id, rows, keep) {
      if (!keep) { this.rows[id] = []; return; }
      const kept = (this.rows[id] ??= []);
      kept.push(...rows);
      const last = kept.at(-1)[0];
      while (kept[0][0] < last - keep) kept.shift();
      const first = Math.max(last - keep, Math.min(kept[0][0], last - keep / 4));
      part.chart?.setOption({ dataset: { source: kept }, xAxis: { min: first, max: last } });
    },
  },
};
