// The token strip. Tokens are plain spans, made once and never touched again, so that thousands stay
// quick; what is selected moves a roving tabindex. How unlikely a token was is told three times: by
// colour, by the line below it, and in words (title, aria-label).
export default {
  template: `<div class="hr-strip" role="listbox" aria-orientation="horizontal" :aria-label="label"
    :data-by="by" @click="clicked" @keydown="pressed"></div>`,
  props: { label: String, by: String },
  emits: ["pick"],
  created() { this.selected = -1; },
  methods: {
    append(tokens) {
      const box = this.$el;
      const page = document.scrollingElement;
      const follows = page.scrollHeight - page.scrollTop - page.clientHeight < 80 && this.selected < 0;
      const fragment = document.createDocumentFragment();
      for (const [text, p, h, words, mark] of tokens) {
        const span = document.createElement("span");
        span.className = `hr-token p${p} h${h}${mark ? " hr-forced" : ""}`;
        span.textContent = this.shown(text);
        span.title = words;
        span.tabIndex = -1;
        span.setAttribute("role", "option");
        span.setAttribute("aria-selected", "false");
        span.setAttribute("aria-label", words);
        fragment.append(span);
        if (text.includes("\n")) fragment.append(document.createElement("br"));
      }
      box.append(fragment);
      if (this.selected < 0 && box.firstChild) box.firstChild.tabIndex = 0;
      if (follows) page.scrollTop = page.scrollHeight;
    },
    clear() {
      this.selected = -1;
      this.$el.replaceChildren();
    },
    shown(text) {
      if (text === "") return "∅";
      return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replace(/^ +$/, (s) => "␣".repeat(s.length));
    },
    tokens() { return this.$el.querySelectorAll(".hr-token"); },
    clicked(event) {
      const token = event.target.closest(".hr-token");
      if (token) this.select([...this.tokens()].indexOf(token), true);
    },
    pressed(event) {
      const tokens = this.tokens();
      if (!tokens.length) return;
      const now = Math.max([...tokens].indexOf(document.activeElement), 0);
      const to = {
        ArrowLeft: () => now - 1, ArrowRight: () => now + 1, Home: () => 0,
        End: () => tokens.length - 1, PageUp: () => now - 20, PageDown: () => now + 20,
        ArrowUp: () => this.beside(tokens, now, -1), ArrowDown: () => this.beside(tokens, now, 1),
        Enter: () => now, " ": () => now,
      }[event.key];
      if (!to || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.select(Math.min(Math.max(to(), 0), tokens.length - 1), true);
    },
    beside(tokens, now, step) {
      const here = tokens[now].getBoundingClientRect();
      for (let i = now + step, best = -1, row = null; ; i += step) {
        const box = tokens[i]?.getBoundingClientRect();
        if (!box || (row !== null && Math.abs(box.top - row) > 4)) return best < 0 ? now : best;
        if (Math.abs(box.top - here.top) <= 4) continue;
        row ??= box.top;
        const gap = (j) => Math.abs(tokens[j].getBoundingClientRect().left - here.left);
        if (best < 0 || gap(i) < gap(best)) best = i;
      }
    },
    select(index, tell) {
      const tokens = this.tokens();
      const old = tokens[this.selected] ?? tokens[0];
      if (old) { old.tabIndex = -1; old.setAttribute("aria-selected", "false"); }
      const token = tokens[index];
      this.selected = token ? index : -1;
      if (!token) { if (old) old.tabIndex = 0; return; }
      token.tabIndex = 0;
      token.setAttribute("aria-selected", "true");
      if (tell) {
        token.focus();
        this.$emit("pick", index);
      }
    },
  },
};
