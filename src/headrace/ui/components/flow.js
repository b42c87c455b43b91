// Text that grows: pieces are appended, what is there is not sent again. Never HTML.
export default {
  template: `<div class="hr-flow" aria-live="off"></div>`,
  methods: {
    clear() {
      this.$el.replaceChildren();
    },
    append(text) {
      const page = document.scrollingElement;
      const follows = page.scrollHeight - page.scrollTop - page.clientHeight < 120;
      this.$el.append(document.createTextNode(text));
      if (follows) page.scrollTop = page.scrollHeight;
    },
  },
};
