// The prefix tree: a row per node, its bar from where it starts to where it ends, as wide as it is
// long; an icicle that lies on its side. Rows open and close with a click, Enter, ← and →.
export default {
  template: `<div class="hr-tree" role="tree" :aria-label="label" @keydown="pressed">
    <div v-for="n in shown" :key="n.key" role="treeitem" class="hr-node" :aria-level="n.depth + 1"
      :aria-expanded="n.kids ? !closed[n.key] : undefined" :tabindex="n.key === focus ? 0 : -1"
      :data-key="n.key" @click="toggle(n)" @focus="focus = n.key" :title="n.words" :aria-label="n.words">
      <span class="hr-node-name">{{ "\u00a0".repeat(Math.min(n.depth, 12) * 2) }}{{ n.kids ? (closed[n.key] ? "▸" : "▾") : "·" }} {{ n.text }}</span>
      <span class="hr-node-track" aria-hidden="true"><span class="hr-node-bar" :class="{ 'hr-held': n.holders }"
        :style="{ left: n.left + '%', width: n.width + '%' }"></span></span>
    </div></div>`,
  props: { label: String },
  data() { return { nodes: [], closed: {}, focus: null }; },
  computed: {
    shown() {
      const hidden = new Set();
      return this.nodes.filter((n) => {
        if (n.up !== null && (hidden.has(n.up) || this.closed[n.up])) { hidden.add(n.key); return false; }
        return true;
      });
    },
  },
  methods: {
    // list: [parent, start, tokens, children, holders, salted], parents before children
    put(list) {
      const kids = list.map(() => []);
      const roots = [];
      list.forEach((n, i) => (n[0] === null ? roots : kids[n[0]]).push(i));
      const end = Math.max(...list.map((n) => n[1] + n[2]), 1);
      const nodes = [];
      const walk = (i, up, depth) => {
        const [, start, tokens, children, holders, salted] = list[i];
        let key = `${up ?? ""}/${start}+${tokens}`;
        while (seen.has(key)) key += "'";
        seen.add(key);
        const held = holders ? `, used by ${holders}` : "";
        const unseen = children - kids[i].length;
        nodes.push({ key, up, depth, holders, kids: kids[i].length, left: (100 * start) / end,
          width: Math.max((100 * tokens) / end, 0.4),
          text: `${tokens} tokens${holders ? ` ×${holders}` : ""}`,
          words: `tokens ${start} to ${start + tokens}, ${children} continuations${unseen ? ` (${unseen} not shown)` : ""}${held}${salted ? ", a salted tenant's" : ""}` });
        kids[i].sort((a, b) => list[b][2] - list[a][2]).forEach((j) => walk(j, key, depth + 1));
      };
      const seen = new Set();
      roots.forEach((i) => walk(i, null, 0));
      this.nodes = nodes;
      if (!seen.has(this.focus)) this.focus = nodes[0]?.key ?? null;
    },
    toggle(n) { if (n.kids) this.closed[n.key] = !this.closed[n.key]; this.focus = n.key; },
    pressed(event) {
      const at = this.shown.findIndex((n) => n.key === this.focus);
      const n = this.shown[at];
      if (!n || event.ctrlKey || event.metaKey || event.altKey) return;
      const go = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: this.shown.length - 1 }[event.key];
      if (go !== undefined) this.focus = this.shown[Math.min(Math.max(go, 0), this.shown.length - 1)].key;
      else if (event.key === "ArrowLeft" && n.kids && !this.closed[n.key]) this.closed[n.key] = true;
      else if (event.key === "ArrowLeft" && n.up !== null) this.focus = n.up;
      else if (event.key === "ArrowRight" && n.kids) this.closed[n.key] = false;
      else if ((event.key === "Enter" || event.key === " ") && n.kids) this.toggle(n);
      else return;
      event.preventDefault();
      this.$nextTick(() => this.$el.querySelector('[tabindex="0"]')?.focus());
    },
  },
};
