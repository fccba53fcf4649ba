// What the dashboard does in the browser: refresh, curves, keys, theme, zone, selection, copy. Every page works without it.
(() => {
  "use strict";
  const root = document.documentElement;
  const base = document.body.dataset.base;
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const kept = {
    get: (name) => { try { return localStorage.getItem("redrive." + name); } catch { return null; } },
    set: (name, value) => { try { localStorage.setItem("redrive." + name, value); } catch { /* private window */ } },
  };
  const say = (text) => { $("#announce").textContent = text; };

  // Theme: a cookie, so that the server renders the page in it and nothing flashes.
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  function flipTheme() {
    root.dataset.theme = dark() ? "light" : "dark";
    document.cookie = `redrive_theme=${root.dataset.theme};path=${base}/;max-age=31536000;samesite=strict`;
    drawAll(true);
    say(root.dataset.theme + " theme");
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(true));

  // Times are UTC in the page; local ones are made of them here.
  const two = (n) => String(n).padStart(2, "0");
  const local = () => kept.get("zone") === "local";
  const format = (t) => `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
  function showTimes() {
    for (const e of $$("time[datetime]")) {
      const t = new Date(e.dateTime);
      if (isNaN(t)) continue;
      const utc = t.toISOString().slice(0, 19).replace("T", " ") + "Z";
      e.textContent = local() ? format(t) : utc;
      e.title = local() ? utc : format(t) + " here";
    }
    for (const e of $$("[data-zone]")) e.textContent = local() ? "Local" : "UTC";
  }
  function flipZone() {
    kept.set("zone", local() ? "utc" : "local");
    showTimes();
    drawAll(true);
    say(local() ? "local times" : "times in UTC");
  }

  // Curves.
  const plots = new Map();
  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  function draw(box, again) {
    const text = box.dataset.chart;
    const plot = plots.get(box);
    if (plot && !again && plot.text === text) return;
    const c = JSON.parse(text);
    const data = [c.x, c.in, c.out];
    if (plot && !again) {
      plot.text = text;
      plot.u.setData(data);
      return;
    }
    if (plot) plot.u.destroy();
    box.textContent = "";
    const bars = box.dataset.kind === "bars";
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const paths = bars ? uPlot.paths.bars({ size: [0.7, 22], radius: 0.15 }) : undefined;
    const series = (label, stroke, fill) => ({ label, stroke, fill, width: bars ? 0 : 1.5, paths, points: { show: false } });
    const u = new uPlot({
      width: Math.max(box.clientWidth, 160), height: 180, ms: 1, legend: { show: false }, padding: [10, 18, 0, 0],
      tzDate: (s) => local() ? new Date(s * 1000) : uPlot.tzDate(new Date(s * 1000), "UTC"),
      cursor: { y: false, points: { size: 7 } },
      scales: { x: { time: true, range: (_, min, max) => bars ? [min - 1800, max + 1800] : [min, max] }, y: { range: (_, min, max) => [0, Math.max(5, max * 1.1)] } },
      axes: [{ ...axis, grid: { show: false }, space: 60, size: 28, incrs: bars ? [3600, 7200, 10800, 14400, 21600, 43200] : [86400, 172800, 345600], values: [[86400, "{DD} {MMM}", null, null, null, null, null, null, 1], [3600, "{HH}:00", null, null, null, null, null, null, 1]] }, { ...axis, size: 44, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6] }],
      series: [{}, series("died", color("--in"), bars ? color("--in") : color("--in-fill")), bars ? { ...series("closed", color("--out")), width: 2, paths: undefined } : series("closed", color("--out"), undefined)],
      hooks: {
        setCursor: [(u) => {
          const i = u.cursor.idx;
          tip.hidden = i == null || u.cursor.left < 0;
          if (tip.hidden) return;
          const at = new Date(c.x[i] * 1000);
          tip.textContent = `${local() ? format(at).slice(0, 16) : at.toISOString().slice(0, 16).replace("T", " ") + "Z"}  ${u.data[1][i]} died, ${u.data[2][i]} closed`;
        }],
      },
    }, data, box);
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    box.append(tip);
    plots.set(box, { u, text });
  }
  function drawAll(again) {
    for (const [box, plot] of plots) {
      if (!box.isConnected) { plot.u.destroy(); plots.delete(box); }
    }
    if (typeof uPlot === "undefined") return;
    for (const box of $$(".chart[data-chart]")) draw(box, again);
  }
  let resizing;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => { for (const [box, plot] of plots) plot.u.setSize({ width: Math.max(box.clientWidth, 160), height: 180 }); }, 100);
  });

  // Refresh: only while somebody looks and is not in the middle of something.
  const live = $("#live");
  const every = Number(document.body.dataset.every) * 1000;
  let paused = kept.get("paused") === "yes";
  let loading = false;
  const busy = () => document.hidden || $("dialog[open]") || $("input[name=pick]:checked") ||
    (live.contains(document.activeElement) && document.activeElement.matches("input:not([type=checkbox]), textarea, select")) ||
    $$("#live input:not([type=hidden]), #live textarea").some((e) => e.type === "checkbox" || e.type === "radio" ? e.checked !== e.defaultChecked : e.value !== e.defaultValue) ||
    String(getSelection()) !== "";
  function showRefresh(problem) {
    const text = $("[data-updated]");
    if (!text) return;
    const button = $("[data-do=pause]");
    button.textContent = paused ? "Go on" : "Pause";
    button.setAttribute("aria-pressed", String(paused));
    root.toggleAttribute("data-paused", paused);
    root.toggleAttribute("data-stale", Boolean(problem));
    text.textContent = problem || (paused ? "paused" : `every ${every / 1000} s`);
  }
  function tick() {
    if (!every || paused || loading || busy()) return;
    htmx.trigger(live, "redrive:refresh");
  }
  document.addEventListener("htmx:before:request", (e) => { if (e.target === live) loading = true; });
  document.addEventListener("htmx:finally:request", () => { loading = false; });
  document.addEventListener("htmx:before:swap", (e) => {
    const status = e.detail?.ctx?.response?.status;
    if (!status || status < 400) { showRefresh(); return; }
    e.preventDefault(); // what is on the screen is worth more than an error page
    showRefresh(status === 401 || status === 403 ? "signed out: load the page again" : "cannot refresh, trying again");
  });
  document.addEventListener("htmx:error", () => showRefresh("server does not answer, trying again"));
  document.addEventListener("htmx:after:swap", () => { ready(); row(-1); });
  function flipPause() {
    paused = !paused;
    kept.set("paused", paused ? "yes" : "no");
    showRefresh();
    say(paused ? "refreshing is paused" : "refreshing");
    if (!paused) tick();
  }
  if (every) setInterval(tick, every);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) tick(); });

  // Selection.
  function showPicked() {
    const all = $$("input[name=pick]");
    const picked = all.filter((e) => e.checked).length;
    const label = $("[data-picked]");
    if (label) label.textContent = picked ? `${picked} ticked` : "Ticked ones";
    const head = $("[data-do=all]");
    if (head) { head.checked = picked > 0 && picked === all.length; head.indeterminate = picked > 0 && picked < all.length; }
    const bar = $(".selection");
    if (bar) bar.classList.toggle("some", picked > 0 || $("input[name=scope][value=all]")?.checked);
  }
  document.addEventListener("change", (e) => {
    if (e.target.matches("[data-do=all]")) for (const box of $$("input[name=pick]")) box.checked = e.target.checked;
    if (e.target.matches("[data-do=all], input[name=pick]")) { const page = $("input[name=scope][value=page]"); if (page) page.checked = true; }
    if (e.target.matches("[data-do=all], input[name=pick], input[name=scope]")) showPicked();
  });

  // Buttons.
  async function copy(button) {
    const what = button.dataset.copy;
    const text = what === "link" ? location.href.split("?")[0] : $(what).textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch { // no permission, or not a secure page
      const area = document.createElement("textarea");
      area.value = text;
      area.className = "sr";
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    const label = button.textContent;
    button.textContent = "Copied";
    say("copied");
    setTimeout(() => { button.textContent = label; }, 1200);
  }
  // Formatting moves white space alone: JSON.parse would round numbers and drop keys that come twice.
  function pretty(text) {
    JSON.parse(text); // or it is not touched
    let out = "", depth = 0;
    const line = () => "\n" + "  ".repeat(depth);
    for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s"\[\]{},:]+/g)) {
      if (token === "{" || token === "[") { out += token; depth++; out += line(); }
      else if (token === "}" || token === "]") { depth--; out = /[{[]\s*$/.test(out) ? out.trimEnd() + token : out + line() + token; }
      else if (token === ",") out += token + line();
      else out += token === ":" ? ": " : token;
    }
    return out;
  }
  const doing = {
    format: () => {
      const area = $("[data-json]");
      try { area.value = pretty(area.value); say("formatted"); } catch { say("not JSON"); }
      checkJSON(area);
    },
    theme: flipTheme, zone: flipZone, pause: flipPause,
    help: () => $("#help").showModal(),
    close: (b) => b.closest("dialog").close(),
    dismiss: (b) => b.parentElement.remove(),
    raw: (b) => {
      const raw = $("#raw").hidden;
      $("#raw").hidden = !raw;
      $("[data-pretty]").hidden = raw;
      b.setAttribute("aria-pressed", String(raw));
      b.textContent = raw ? "Pretty" : "Raw";
    },
  };
  document.addEventListener("click", (e) => {
    const button = e.target.closest("button[data-do]");
    if (button && doing[button.dataset.do]) { doing[button.dataset.do](button); return; }
    const copies = e.target.closest("[data-copy]");
    if (copies) { copy(copies); return; }
    const tr = e.target.closest("tr[data-href]"); // the whole row is a link, but text can be selected and boxes ticked
    if (tr && !e.target.closest("a, button, input, label, .pick") && !String(getSelection())) location.href = tr.dataset.href;
  });
  document.addEventListener("input", (e) => {
    const of = e.target.dataset.filter;
    if (of) {
      const words = e.target.value.toLowerCase();
      for (const tr of $$(of + " tr")) tr.hidden = !tr.textContent.toLowerCase().includes(words);
    }
    if (e.target.matches("[data-json]")) checkJSON(e.target);
  });
  function checkJSON(area) {
    const state = $("[data-json-state]");
    try {
      JSON.parse(area.value);
      state.textContent = "Valid JSON.";
      state.classList.remove("bad");
    } catch (err) {
      state.textContent = "Not JSON: " + err.message;
      state.classList.add("bad");
    }
  }

  // Keys.
  let going = 0;
  const typing = (e) => e.matches("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]");
  function row(step) {
    const rows = $$("tr[data-href]");
    const now = rows.findIndex((r) => r.classList.contains("at"));
    if (step < 0 && now < 0) return;
    if (!rows.length) return;
    const next = Math.min(Math.max(now + step, 0), rows.length - 1);
    if (now >= 0) rows[now].classList.remove("at");
    rows[next].classList.add("at");
    const link = $("a", rows[next]);
    link.focus({ preventScroll: true });
    rows[next].scrollIntoView({ block: "nearest" });
  }
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented) return;
    if (typing(e.target)) {
      if (e.key === "Escape") e.target.blur();
      return;
    }
    if ($("dialog[open]")) return;
    if (Date.now() - going < 1500) {
      going = 0;
      const link = $(`a[data-go="${CSS.escape(e.key)}"]`);
      if (link) { e.preventDefault(); location.href = link.href; }
      return;
    }
    const at = $("tr.at");
    const keys = {
      g: () => { going = Date.now(); }, "/": () => $("[data-search]")?.focus(), j: () => row(1), k: () => row(-1),
      x: () => { const box = at && $("input[name=pick]", at); if (box) box.click(); },
      t: flipTheme, u: flipZone, ".": () => every && flipPause(), "?": () => $("#help").showModal(),
    };
    if (keys[e.key]) { e.preventDefault(); keys[e.key](); }
  });
  document.addEventListener("focusin", (e) => {
    const tr = e.target.closest("tr[data-href]");
    if (!tr) return;
    for (const other of $$("tr.at")) other.classList.remove("at");
    tr.classList.add("at");
  });

  function ready() {
    showTimes();
    drawAll();
    showPicked();
  }
  ready();
  showRefresh();
  for (const area of $$("[data-json]")) if (area.value.trim()) checkJSON(area);
})();
