// Light, dark, or as the system has it; the browser remembers. Nothing of it reaches the server.
window.hrTheme = {
  names: ["auto", "light", "dark"],
  icons: { auto: "brightness_auto", light: "light_mode", dark: "dark_mode" },
  now() {
    try { return localStorage.getItem("headrace-theme") || "auto"; } catch { return "auto"; }
  },
  next() {
    const name = this.names[(this.names.indexOf(this.now()) + 1) % 3];
    try { localStorage.setItem("headrace-theme", name); } catch { /* for this page only */ }
    this.show(name);
  },
  show(name) {
    setDark(name === "auto" ? null : name === "dark");
    document.querySelectorAll(".hr-theme").forEach((button) => {
      button.setAttribute("aria-label", `Colours: ${name}. Press to change.`);
      button.title = `Colours: ${name}`;
      const icon = button.querySelector(".q-icon");
      if (icon) icon.textContent = this.icons[name];
    });
  },
};
window.addEventListener("DOMContentLoaded", () => {
  window.None ??= null;
  const wait = setInterval(() => {
    if (!document.querySelector(".hr-theme")) return;
    clearInterval(wait);
    window.hrTheme.show(window.hrTheme.now());
    document.querySelector(".hr-nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
  }, 20);
});
