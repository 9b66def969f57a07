"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  // Text from models and users reaches the page through `textContent` alone.
  const make = (tag, about = {}, ...inside) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(about)) {
      if (name === "text") made.textContent = value;
      else if (name === "class") made.className = value;
      else made.setAttribute(name, value);
    }
    made.append(...inside);
    return made;
  };
  const data = (id) => JSON.parse($(id)?.textContent ?? "null");

  // Theme: as the system has it, until a person chooses
  const themes = ["auto", "light", "dark"];
  const theme = $("theme");
  const showTheme = () => { theme.textContent = { auto: "◐ auto", light: "☀ light", dark: "☾ dark" }[document.documentElement.dataset.theme || "auto"]; };
  theme.addEventListener("click", () => {
    const next = themes[(themes.indexOf(document.documentElement.dataset.theme || "auto") + 1) % 3];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try { next === "auto" ? localStorage.removeItem("tributary-theme") : localStorage.setItem("tributary-theme", next); } catch { /* a page from a file may have no storage */ }
    showTheme();
  });
  showTheme();

  // Tips
  const tip = $("tip");
  const showTip = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(6, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = (y + box.height + 24 > innerHeight ? Math.max(6, y - box.height - 12) : y + 16) + "px";
  };
  const hideTip = () => { tip.hidden = true; };
  const tipAt = (event, text) => {
    const box = event.currentTarget.getBoundingClientRect();
    showTip(text, event.clientX ?? box.left, event.clientY ?? box.bottom);
  };
  for (const element of document.querySelectorAll("[data-tip]")) {
    element.addEventListener("pointermove", (event) => tipAt(event, element.dataset.tip));
    element.addEventListener("focus", (event) => tipAt(event, element.dataset.tip));
    element.addEventListener("pointerleave", hideTip);
    element.addEventListener("blur", hideTip);
  }
  addEventListener("scroll", hideTip, { passive: true });

  // Copy and save
  const fill = (button, text) => {
    const before = button.textContent;
    button.textContent = text;
    setTimeout(() => { button.textContent = before; }, 1200);
  };
  for (const button of document.querySelectorAll("[data-copy],[data-copy-from]")) {
    button.addEventListener("click", async () => {
      const text = button.dataset.copy ?? $(button.dataset.copyFrom).textContent;
      try { await navigator.clipboard.writeText(text); fill(button, "copied"); }
      catch { fill(button, "select and copy"); }
    });
  }
  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", () => {
      const url = URL.createObjectURL(new Blob([$(button.dataset.from).textContent], { type: "text/yaml" }));
      make("a", { href: url, download: button.dataset.save }).click();
      setTimeout(() => URL.revokeObjectURL(url), 1000);
    });
  }

  // Links into a closed part open it
  const open = () => {
    const target = location.hash && $(decodeURIComponent(location.hash.slice(1)));
    const part = target && target.closest("details");
    if (part && !part.open) { part.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", open);
  open();

  // Tabs
  for (const button of document.querySelectorAll("[data-shows]")) {
    button.addEventListener("click", () => {
      const shown = $(button.dataset.shows);
      for (const other of document.querySelectorAll(`[data-tab="${shown.dataset.tab}"]`)) other.hidden = other !== shown;
      for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
      draw();
    });
  }

  // A page that is served asks whether there is more to show, and keeps what was chosen
  const version = document.body.dataset.version;
  if (version) {
    const chosen = () => [...document.querySelectorAll("[data-shows][aria-pressed=true]")].map((b) => b.dataset.shows);
    const ask = async () => {
      try {
        const reply = await fetch("version", { cache: "no-store" });
        const newest = await reply.text();
        $("live").textContent = reply.ok ? "live" : "waiting";
        const isReading = document.activeElement?.closest("#samples") || getSelection().toString();
        if (reply.ok && newest !== version && !isReading) {
          sessionStorage.setItem("shown", JSON.stringify(chosen()));
          location.reload();
          return;
        }
      } catch { $("live").textContent = "not live: its command has ended"; }
      setTimeout(ask, 2000);
    };
    addEventListener("load", () => {
      for (const shown of JSON.parse(sessionStorage.getItem("shown") || "[]")) {
        document.querySelector(`[data-shows="${CSS.escape(shown)}"]`)?.click();
      }
      setTimeout(ask, 2000);
    });
  }

  // Charts: drawn at the width they have, so that text keeps its size
  const NS = "http://www.w3.org/2000/svg";
  const svg = (tag, about, text) => {
    const made = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(about)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const number = (value) => {
    const size = Math.abs(value);
    if (value === 0) return "0";
    if (size >= 1e4 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
    return String(Number(value.toPrecision(3)));
  };
  const ticks = (low, high, count) => {
    const raw = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
    return found;
  };
  const drawChart = (box, chart) => {
    const width = box.clientWidth - 24, height = chart.large || chart.wide ? 230 : 132;
    if (width < 60) return;
    const left = 46, right = 8, top = 8, bottom = 20;
    const points = chart.lines.flatMap((line) => line.points);
    const steps = points.map((p) => p[0]);
    const first = Math.min(...steps), most = Math.max(...steps), last = most > first ? most : first + 1;
    // A point is [step, value, error], or [step, value, below, above].
    const below = (p) => p[1] - (p[2] || 0), above = (p) => p[1] + ((p.length > 3 ? p[3] : p[2]) || 0);
    let low = Math.min(...points.map(below)), high = Math.max(...points.map(above));
    if (low >= 0 && low < 0.5 * high) low = 0;
    if (chart.top != null) { low = Math.max(0, low); high = Math.min(chart.top, high); }
    if (high - low < 1e-12) { const pad = Math.abs(high) || 1; high += pad * 0.5; low = low >= 0 ? Math.max(0, low - pad * 0.5) : low - pad * 0.5; }
    const marks = ticks(low, high, chart.large || chart.wide ? 4 : 3);
    high = Math.max(high, marks.at(-1) ?? high);
    const scaled = chart.doubles ? Math.log2 : (step) => step;
    const x = (step) => left + (width - left - right) * (scaled(step) - scaled(first)) / (scaled(last) - scaled(first));
    const y = (value) => height - bottom - (height - top - bottom) * (Math.min(high, Math.max(low, value)) - low) / (high - low);
    const drawn = svg("svg", { width, height, role: "img", "aria-label": chart.title });
    for (const value of marks) {
      drawn.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
      drawn.append(svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, number(value)));
    }
    const between = chart.doubles ? [...new Set(steps)].filter((s) => x(s) > x(first) + 24 && x(s) < x(last) - 24) : ticks(first, last, Math.min(6, Math.max(2, Math.floor(width / 90)))).map((s) => Math.round(s * 1e6) / 1e6)
      .filter((s) => (chart.unit || Number.isInteger(s)) && x(s) > x(first) + 36 && x(s) < x(last) - 48);
    for (const step of [first, ...between, last]) drawn.append(svg("text", { x: x(step), y: height - 4, "text-anchor": step === last ? "end" : "middle" }, String(step)));
    chart.lines.forEach((line, nth) => {
      const colour = `var(--c${nth % 6 + 1})`;
      const aside = chart.doubles ? Math.min(4, 24 / chart.lines.length) * (nth - (chart.lines.length - 1) / 2) : 0; // bars at one place would hide each other
      const path = line.points.map((p, i) => `${i ? "L" : "M"}${(x(p[0]) + aside).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("");
      drawn.append(svg("path", { d: path, fill: "none", stroke: colour, "stroke-width": 1.8, "stroke-linejoin": "round" }));
      for (const p of line.points.length <= 40 ? line.points : []) {
        if (above(p) > below(p)) drawn.append(svg("line", { x1: x(p[0]) + aside, x2: x(p[0]) + aside, y1: y(below(p)), y2: y(above(p)), stroke: colour, "stroke-opacity": 0.55, "stroke-width": 1.4 }));
        drawn.append(svg("circle", { cx: x(p[0]) + aside, cy: y(p[1]), r: 2.6, fill: colour }));
      }
    });
    const cursor = svg("line", { y1: top, y2: height - bottom, stroke: "currentColor", "stroke-opacity": 0, "stroke-dasharray": "3 3" });
    drawn.append(cursor);
    drawn.addEventListener("pointermove", (event) => {
      const at = event.clientX - drawn.getBoundingClientRect().left;
      const step = steps.reduce((best, s) => Math.abs(x(s) - at) < Math.abs(x(best) - at) ? s : best, steps[0]);
      cursor.setAttribute("x1", x(step)); cursor.setAttribute("x2", x(step)); cursor.setAttribute("stroke-opacity", 0.4);
      const said = chart.lines.flatMap((line) => {
        const p = line.points.find((q) => q[0] === step);
        return p ? [`${line.name}: ${number(p[1])}${p.length > 3 ? ` (${number(below(p))} to ${number(above(p))})` : p[2] ? ` ± ${number(p[2])}` : ""}`] : [];
      });
      showTip(`${chart.unit ?? "step"} ${step}\n${said.join("\n")}`, event.clientX, event.clientY);
    });
    drawn.addEventListener("pointerleave", () => { cursor.setAttribute("stroke-opacity", 0); hideTip(); });
    box.replaceChildren(make("h4", { text: chart.title }));
    if (chart.lines.length > 1 || chart.large) box.append(make("div", { class: "legend" }, ...chart.lines.map((line, place) => make("span", {}, make("i", { style: `background:var(--c${place % 6 + 1})` }), line.name))));
    box.append(drawn);
  };
  const charts = data("data-charts") || {};
  function draw() {
    for (const place of document.querySelectorAll("[data-charts]")) {
      if (place.hidden) continue;
      let grid = place.firstElementChild;
      if (!grid) {
        grid = make("div", { class: "charts" }, ...charts[place.dataset.charts].map((c) => make("div", { class: c.large ? "chart large" : c.wide ? "chart half" : "chart" })));
        place.append(grid);
      }
      [...grid.children].forEach((box, i) => drawChart(box, charts[place.dataset.charts][i]));
    }
  }
  draw();
  let resizing = 0;
  addEventListener("resize", () => { cancelAnimationFrame(resizing); resizing = requestAnimationFrame(draw); });

  // Samples
  const all = data("data-samples");
  if (!all || !all.samples.length) return;
  const { samples, pairs, pieces } = all;
  const textOf = (s) => s.tokens ? s.tokens.map((t) => pieces[t]).join("") : s.prompt + s.response;
  const answerOf = (s) => s.tokens ? s.tokens.slice(Math.max(0, s.mask.indexOf("1"))).map((t) => pieces[t]).join("") : s.response;
  const texts = new Map();
  const searchText = (i) => {
    if (!texts.has(i)) { const s = samples[i]; texts.set(i, [textOf(s), s.problem, s.reason, s.label, s.stage].join("\n").toLowerCase()); }
    return texts.get(i);
  };
  const nameOf = (s) => s.model ? `${s.model}, ${s.kind === "score" ? "sampled" : s.kind}` : `${s.stage}, ${s.label}`;
  const choose = (id, first, values) => {
    $(id).append(make("option", { value: "", text: first }), ...[...new Set(values)].map((v) => make("option", { value: v, text: v })));
    $(id).addEventListener("change", refresh);
  };
  let view = "all", shown = [], limit = 0, current = -1;
  choose("by-label", "every model and stage", samples.map((s) => s.model || s.stage));
  choose("by-domain", "every domain", samples.map((s) => s.domain));
  choose("by-status", "every status", samples.map((s) => s.status));
  $("search").addEventListener("input", refresh);
  for (const button of $("views").children) button.addEventListener("click", () => {
    view = button.dataset.view;
    for (const other of $("views").children) other.setAttribute("aria-pressed", String(other === button));
    refresh();
  });

  function passes(i) {
    const s = samples[i], label = $("by-label").value, domain = $("by-domain").value, status = $("by-status").value;
    const wanted = $("search").value.toLowerCase();
    return (!label || label === (s.model || s.stage)) && (!domain || domain === s.domain) && (!status || status === s.status) && (!wanted || searchText(i).includes(wanted));
  }
  // An entry is the positions of one sample, or of the two that are shown side by side.
  function entries() {
    if (view === "changed") return pairs.filter((pair) => pair.some(passes));
    const found = [...samples.keys()].filter(passes);
    const by = (key) => found.sort((a, b) => key(b) - key(a));
    const reward = (i) => samples[i].reward;
    if (view === "best") by(reward);
    if (view === "worst") by((i) => -reward(i));
    if (view === "longest") by((i) => samples[i].length);
    return (view === "failed" ? found.filter((i) => samples[i].status !== "completed") : found).map((i) => [i]);
  }
  function refresh() {
    shown = entries(); limit = 60; current = -1;
    list();
    if (shown.length) select(0);
    else $("detail").replaceChildren(make("p", { class: "muted", text: "No sample passes these filters." }));
  }
  const signed = (v) => (v > 0 ? "+" : "") + number(v);
  function list() {
    $("list").replaceChildren(...shown.slice(0, limit).map((entry, place) => {
      const s = samples[entry.at(-1)];
      const value = entry.length > 1 ? signed(s.reward - samples[entry[0]].reward) : number(s.reward);
      const good = entry.length > 1 ? s.reward > samples[entry[0]].reward : s.status === "completed" && s.reward > 0;
      const button = make("button", { type: "button", "aria-current": String(place === current) },
        make("span", { class: "row" }, make("span", { class: "what", text: s.problem }), make("span", { class: `pill ${good ? "good" : "bad"}`, text: value })),
        make("span", { class: "snippet", text: nameOf(s) + (s.status === "completed" ? "" : ` · ${s.status}`) }),
        make("span", { class: "snippet mono", text: answerOf(s).slice(0, 90) || "(empty)" }));
      button.addEventListener("click", () => select(place));
      return button;
    }));
    if (shown.length > limit) {
      const more = make("button", { type: "button", class: "more", text: `${shown.length - limit} more` });
      more.addEventListener("click", () => { limit += 200; list(); });
      $("list").append(more);
    }
  }
  function select(place) {
    current = place;
    [...$("list").children].forEach((button, i) => button.setAttribute("aria-current", String(i === place)));
    $("detail").replaceChildren(make("div", { class: "sides" }, ...shown[place].map((i, side, both) => card(samples[i], both.length > 1 ? ["before", "after"][side] : ""))));
  }
  function card(s, title) {
    const made = make("div", { class: "card" },
      make("h3", { text: (title ? `${title}: ` : "") + nameOf(s) }),
      make("p", { class: "small muted", text: `${s.problem} · sample ${s.index} · ${s.domain} · ${s.length} tokens` }),
      make("div", { class: "parts" }, make("span", { class: `pill ${s.status === "completed" ? "" : "bad"}`, text: s.status }), make("span", { class: "num", text: `reward ${number(s.reward)}` }),
        ...Object.entries(s.parts).map(([name, value]) => make("span", { class: "num", text: `${name} ${number(value)}` }))));
    if (s.reason) made.append(make("p", { class: "small", text: s.reason }));
    if (!s.tokens) { made.append(make("div", { class: "tokens mono", text: s.prompt + s.response })); return made; }
    const whole = make("div", { class: "tokens mono", tabindex: "0" });
    const about = perToken(s);
    s.tokens.forEach((token, i) => {
      if (s.gap && i === s.gap[0]) whole.append(make("em", { text: `\n… ${s.gap[1]} tokens …\n` }));
      const d = Math.abs(about[i].difference || 0);
      whole.append(make("span", { class: s.mask[i] === "1" ? `t sep${d > 0.1 ? " d2" : d > 0.01 ? " d1" : ""}` : "", "data-i": i, text: pieces[token] }));
    });
    whole.addEventListener("pointerover", (event) => { const i = event.target.dataset.i; if (i !== undefined) showTip(tokenText(s, about[i], i), event.clientX, event.clientY); });
    whole.addEventListener("pointerleave", hideTip);
    made.append(whole);
    const differs = s.differences && s.differences.some((d) => d);
    made.append(make("p", { class: "legend" }, make("span", {}, make("i", { style: "background:var(--good-soft);outline:1px solid var(--good)" }), "written by the model"),
      make("span", {}, make("i", { style: "background:var(--soft)" }), "prompt, tools"),
      ...(differs ? [make("span", {}, make("i", { style: "background:var(--warn)" }), "|d| > 0.01"), make("span", {}, make("i", { style: "background:var(--bad)" }), "|d| > 0.1, d: trainer's logprob - engine's")] : [])));
    return made;
  }
  // Values of trained tokens stand end to end: give each back its place.
  function perToken(s) {
    const versions = (s.versions || []).flatMap(([version, count]) => Array(count).fill(version));
    let k = -1;
    return [...s.mask].map((m) => m === "1" ? (k++, { logprob: s.logprobs?.[k], difference: s.differences?.[k], version: versions[k] }) : {});
  }
  function tokenText(s, a, i) {
    const lines = [`${JSON.stringify(pieces[s.tokens[i]])} (id ${s.tokens[i]})`];
    if (s.mask[i] !== "1") lines.push("not trained on");
    if (a.logprob !== undefined) lines.push(`logprob ${Number(a.logprob).toFixed(3)} (probability ${number(Math.exp(a.logprob))})`);
    if (a.difference !== undefined) lines.push(`trainer - engine: ${signed(a.difference)}`);
    if (a.version !== undefined) lines.push(`weight version ${a.version}`);
    return lines.join("\n");
  }
  const first = [...$("views").children].find((b) => b.dataset.view === "changed");
  (first || $("views").lastElementChild).click();
})();
