// The dashboard's behaviour in the browser: refresh, curves, keys, theme, zone, selection, copy. Every page works without it.
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
  // A refusal comes as a page, too, and asks for no password in the browser's own dialogue.
  const asPage = "text/html,application/xhtml+xml";
  document.addEventListener("htmx:config:request", (e) => { e.detail.ctx.request.headers.Accept = asPage; });
  // pageOf fetches a page. The script shows the reason of a refusal.
  const pageOf = async (url, options) => {
    const answer = await fetch(url, { headers: { Accept: asPage }, ...options });
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  };
  const reasonIn = (page) => $$("main h1, main h1 + p", page).map((e) => e.textContent.trim()).join(": ") || "the server's answer is no page";
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

  // The server renders times in UTC; they are converted to local ones here.
  const two = (n) => String(n).padStart(2, "0");
  const local = () => kept.get("zone") === "local";
  const format = (t) => `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
  function showTimes() {
    for (const e of $$("time[datetime]:not([data-age])")) {
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
    showRefresh();
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
    // The current hour is drawn separately, so that it does not look like a fall.
    const last = c.x.length - 1, step = c.x[1] - c.x[0];
    const bars = box.dataset.kind === "bars";
    const over = (list) => list.map((n, i) => i < last ? n : null), sofar = (list) => list.map((n, i) => i < last - (bars ? 0 : 1) ? null : n);
    const data = bars ? [c.x, over(c.in), c.out, sofar(c.in), c.again] : [c.x, over(c.in), over(c.out), sofar(c.in), sofar(c.out), c.again];
    if (plot && !again) {
      plot.text = text;
      plot.u.setData(data);
      return;
    }
    if (plot) plot.u.destroy();
    box.textContent = "";
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const paths = bars ? uPlot.paths.bars({ size: [0.7, 22], radius: 0.15 }) : undefined;
    const series = (label, stroke, fill) => ({ label, stroke, fill, width: bars ? 0 : 1.5, paths, points: { show: false } });
    const dashed = (label, stroke) => ({ ...series(label, stroke), dash: [3, 3] });
    const round = (u, axis, min, max, incr) => { // at whole hours, or whole five minutes: not counted from the edge
      const at = [];
      for (let x = Math.ceil(min / incr) * incr; x <= max; x += incr) at.push(x);
      return at;
    };
    const u = new uPlot({
      width: Math.max(box.clientWidth, 160), height: 180, ms: 1, legend: { show: false }, padding: [10, 18, 0, 0],
      tzDate: (s) => local() ? new Date(s * 1000) : uPlot.tzDate(new Date(s * 1000), "UTC"),
      cursor: { y: false, points: { size: 7 } },
      scales: { x: { time: true, range: (_, min, max) => bars ? [min - step / 2, max + step / 2] : [min, max] }, y: { range: (_, min, max) => [0, Math.max(5, max * 1.1)] } },
      axes: [{ ...axis, grid: { show: false }, space: 60, size: 28, ...(bars ? { splits: round } : {}), incrs: bars ? [300, 600, 900, 1200, 1800, 3600, 7200, 10800, 14400, 21600, 43200].filter((n) => n >= step) : [86400, 172800, 345600], values: [[86400, "{DD} {MMM}", null, null, null, null, null, null, 1], [300, "{HH}:{mm}", null, null, null, null, null, null, 1]] }, { ...axis, size: 44, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6] }],
      series: [{}, series("died", color("--in"), bars ? color("--in") : color("--in-fill")), bars ? { ...series("closed", color("--out")), width: 2, paths: undefined } : series("closed", color("--out"), undefined), ...(bars ? [series("so far", color("--in"), color("--in-fill"))] : [dashed("so far", color("--in")), dashed("closed so far", color("--out"))]), { ...series("died again", color("--hold")), width: bars ? 2 : 1.5, paths: undefined }],
      hooks: {
        setCursor: [(u) => {
          const i = u.cursor.idx;
          tip.hidden = i == null || u.cursor.left < 0;
          if (tip.hidden) return;
          const now = JSON.parse(box.dataset.chart); // may be newer than those it was drawn with
          const at = new Date(now.x[i] * 1000);
          tip.textContent = `${local() ? format(at).slice(0, 16) : at.toISOString().slice(0, 16).replace("T", " ") + "Z"}  ${now.in[i]} died, ${now.again[i]} of them again, ${now.out[i]} closed${i === now.x.length - 1 ? " so far" : ""}`;
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

  // Refresh: only while the page is visible and the user is not in the middle of something.
  const live = $("#live");
  const every = Number(document.body.dataset.every) * 1000;
  let paused = kept.get("paused") === "yes";
  let loading = false;
  const busy = () => document.hidden || $("dialog[open]") || $("input[name=pick]:checked") ||
    (live.contains(document.activeElement) && document.activeElement.matches("input:not([type=checkbox]), textarea, select")) ||
    $$("#live input:not([type=hidden]), #live textarea").some((e) => e.type === "checkbox" || e.type === "radio" ? e.checked !== e.defaultChecked : e.value !== e.defaultValue) ||
    String(getSelection()) !== "";
  // When refreshing is stopped or fails, the page is stale: it turns grey and shows the time of its data. An unreachable server is
  // announced in the middle of the page, because no button on it would work.
  function asOf() {
    const at = new Date(live.dataset.at);
    return isNaN(at) ? "" : "as of " + (local() ? format(at).slice(11) : at.toISOString().slice(11, 19) + "Z");
  }
  let away = "", awayWhy = "";
  function showRefresh() {
    const text = $("[data-updated]");
    if (!text) return;
    const button = $("[data-do=pause]");
    button.setAttribute("aria-pressed", String(paused));
    button.setAttribute("aria-label", paused ? "Start refreshing this page" : "Stop refreshing this page");
    root.toggleAttribute("data-paused", paused);
    root.toggleAttribute("data-stale", Boolean(away));
    text.textContent = paused || away ? asOf() : `every ${every / 1000} s`;
    const middle = $("#away");
    if (middle.hidden === Boolean(away)) middle.hidden = !away;
    if (away && $("[data-away]").textContent !== away) $("[data-away]").textContent = away;
    if (away) $("[data-away-detail]").textContent = awayWhy + " This page is " + asOf() + ".";
  }
  function isAway(title, why) { away = title; awayWhy = why; showRefresh(); }
  function tick() {
    if (!every || paused || loading || busy()) return;
    htmx.trigger(live, "redrive:refresh");
  }
  document.addEventListener("htmx:before:request", (e) => { if (e.target === live) loading = true; });
  document.addEventListener("htmx:finally:request", () => { loading = false; });
  let chosen; // the row that the keys are on: a morph removes its class, which the server's page does not have
  document.addEventListener("htmx:before:swap", (e) => {
    const status = e.detail?.ctx?.response?.status;
    chosen = $("tr.at");
    if (!status || status < 400) { away = ""; return; }
    e.preventDefault(); // keep the old content rather than show an error page
    const every5 = `The page retries every ${every / 1000} s.`;
    if (status === 401 || status === 403) isAway("You are signed out", "Load the page again to sign in.");
    else if (status === 404) isAway("This no longer exists", "It may have been purged.");
    else if (status === 429) isAway("Too many requests", "This server limits the requests of one client. " + every5);
    else isAway("The page cannot be refreshed", `The server answers, but with an error (${status}). ` + every5);
  });
  document.addEventListener("htmx:error", () => isAway("The server does not answer", `It may be restarting, or the network is down. The page retries every ${every / 1000} s.`));
  document.addEventListener("htmx:after:swap", () => { ready(); if (chosen?.isConnected) mark(chosen); showRefresh(); });
  function flipPause() {
    paused = !paused;
    kept.set("paused", paused ? "yes" : "no");
    showRefresh();
    say(paused ? "refreshing is stopped" : "refreshing");
    if (!paused) tick();
  }
  if (every) setInterval(tick, every);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) tick(); });

  // Selection.
  function showPicked() {
    const all = $$("input[name=pick]");
    const picked = all.filter((e) => e.checked).length;
    const label = $("[data-picked]");
    if (label) label.textContent = picked ? `${picked} selected` : "Selected";
    const head = $("[data-do=all]");
    if (head) { head.checked = picked > 0 && picked === all.length; head.indeterminate = picked > 0 && picked < all.length; }
    const bar = $(".selection");
    if (bar) bar.classList.toggle("some", picked > 0 || Boolean($("input[name=scope][value=all]")?.checked));
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
  // Formatting changes white space only: JSON.parse would round numbers and drop duplicate keys.
  function pretty(text) {
    JSON.parse(text); // throws when it is not JSON
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
      area.dispatchEvent(new Event("input", { bubbles: true }));
    },
    theme: flipTheme, zone: flipZone, pause: flipPause, stop: stopSearch, retry: () => htmx.trigger(live, "redrive:refresh"),
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
    const tr = e.target.closest("tr[data-href]"); // the whole row is a link, but text and boxes can be selected
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

  // A new run: the count follows the form as it is typed, and the button's label shows what it will send. The button submits the form,
  // so that it can be pressed before the count has arrived.
  const runForm = $("form[data-preview]");
  let counting = 0, countTimer, older;
  async function count() {
    const mine = ++counting;
    const send = $("#send");
    older?.abort(); // a count of a search in texts may still be running, and few may run at the same time
    older = new AbortController();
    try {
      const page = await pageOf(runForm.dataset.preview + "?" + new URLSearchParams(new FormData(runForm)), { signal: older.signal });
      if (mine !== counting) return;
      const fresh = page.querySelector("#preview");
      if (!fresh) throw new Error(reasonIn(page));
      $("#preview").innerHTML = fresh.innerHTML;
      const label = page.querySelector("#send");
      if (send && label) { send.textContent = label.textContent; send.disabled = label.disabled; }
    } catch (err) {
      if (mine !== counting) return;
      const failure = document.createElement("p");
      failure.className = "banner bad";
      failure.textContent = "This could not be counted: " + err.message;
      $("#preview").replaceChildren(failure);
    }
    $("#preview").removeAttribute("aria-busy");
    showTimes();
  }
  if (runForm) {
    const ask = (e) => {
      if (e.target.name === "note") return;
      counting++; // a count in flight is for an older text, and must not lock the button
      $("#preview").setAttribute("aria-busy", "true");
      const send = $("#send");
      if (send) send.disabled = false; // the form is what starts
      clearTimeout(countTimer);
      countTimer = setTimeout(count, 250);
    };
    runForm.addEventListener("input", ask);
    runForm.addEventListener("change", ask);
  }

  // An edit: the difference is shown next to it as it is typed.
  const editForm = $("form[data-diff]");
  let comparing = 0, compareTimer;
  async function compare() {
    const mine = ++comparing;
    const form = new FormData(editForm);
    form.set("do", "preview");
    try {
      const page = await pageOf(editForm.action, { method: "POST", body: new URLSearchParams(form) });
      const fresh = page.querySelector("#diff");
      if (mine !== comparing) return;
      if (!fresh) throw new Error(reasonIn(page));
      const problem = page.querySelector("main .banner.bad");
      $("#diff").innerHTML = fresh.innerHTML;
      if (problem) $("#diff").append(problem);
    } catch (err) {
      if (mine !== comparing) return;
      const failure = document.createElement("p");
      failure.className = "bad";
      failure.textContent = "The difference could not be computed: " + err.message;
      $("#diff").replaceChildren(failure);
    }
  }
  if (editForm) editForm.addEventListener("input", (e) => {
    if (e.target.name === "note") return;
    comparing++;
    clearTimeout(compareTimer);
    compareTimer = setTimeout(compare, 300);
  });

  // A search that reads payloads shows that it is running and for how long, and can be stopped, which stops the server too.
  let searchTimer;
  document.addEventListener("submit", (e) => {
    const slow = e.target.dataset?.slow;
    if (!slow || !slow.split(" ").some((name) => $$(`[name="${name}"]`, e.target).some((f) => f.value.trim()))) return;
    const began = Date.now();
    const said = $("#searching");
    said.hidden = false;
    clearInterval(searchTimer);
    searchTimer = setInterval(() => { $("span", said).textContent = `Searching messages for ${Math.round((Date.now() - began) / 1000)} s…`; }, 1000);
  });
  function stopSearch() {
    window.stop();
    clearInterval(searchTimer);
    $("#searching").hidden = true;
    say("the search is stopped");
  }
  const here = $(".side nav a[aria-current]");
  if (here) here.closest("ul").scrollLeft = here.offsetLeft - 60; // the menu of a phone is wider than the phone
  if (location.hash === "#search") $("[data-search]")?.focus();

  // Keys.
  let going = 0;
  const typing = (e) => e.matches("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]");
  function mark(tr) {
    for (const other of $$("tr.at")) other.classList.remove("at");
    tr.classList.add("at");
  }
  function row(step) {
    const rows = $$("tr[data-href]");
    const now = rows.findIndex((r) => r.classList.contains("at"));
    if (step < 0 && now < 0) return;
    if (!rows.length) return;
    const next = Math.min(Math.max(now + step, 0), rows.length - 1);
    mark(rows[next]);
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
      g: () => { going = Date.now(); }, "/": () => { const field = $("[data-search]"); if (field) field.focus(); else location.href = base + "/entries?status=PENDING#search"; }, j: () => row(1), k: () => row(-1),
      x: () => { const box = at && $("input[name=pick]", at); if (box) box.click(); },
      t: flipTheme, u: flipZone, ".": () => every && flipPause(), "?": () => $("#help").showModal(),
    };
    if (keys[e.key]) { e.preventDefault(); keys[e.key](); return; }
    const button = /^[a-z]$/.test(e.key) && $(`main [data-key="${e.key}"]`);
    if (button) { e.preventDefault(); button.click(); }
  });
  document.addEventListener("focusin", (e) => {
    const tr = e.target.closest("tr[data-href]");
    if (tr) mark(tr);
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
