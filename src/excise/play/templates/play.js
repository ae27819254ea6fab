"use strict";
const at = id => document.getElementById(id);
const make = (tag, text = "", more = {}) => Object.assign(document.createElement(tag), { textContent: text }, more);
const say = text => { at("status").textContent = text; };
let runs = [], turn = 0, stopping = null, cards = {};

async function begin() {
  runs = await (await fetch("/api/runs")).json();
  at("run").replaceChildren(...runs.map(run => make("option", run.name, { value: run.name })));
  await choose();
}

async function choose() {
  const run = runs.find(r => r.name === at("run").value);
  const query = "?run=" + encodeURIComponent(run.name);
  at("report").hidden = !run.report;
  at("report").href = "/report" + query;
  at("verdict").replaceChildren(...run.verdict.map(line => make("li", line)));
  show(run);
  at("known-row").hidden = true;
  const questions = await (await fetch("/api/questions" + query)).json();
  const groups = Object.entries(questions).map(([split, prompts]) => {
    const group = make("optgroup", "", { label: split });
    group.append(...prompts.map(prompt => make("option", prompt, { value: prompt })));
    return group;
  });
  at("known").replaceChildren(make("option", "choose one, or type your own", { value: "" }), ...groups);
  at("known-row").hidden = !groups.length;
}

function show(run) {
  cards = {};
  at("cards").replaceChildren(...run.models.map(model => {
    const card = make("article", "", { className: "card" });
    const title = make("h3", model.title, { id: "title-" + model.role });
    const body = make("div");
    card.dataset.model = model.role;
    card.setAttribute("aria-labelledby", title.id);
    card.append(title, body);
    if (model.missing) body.append(make("p", model.missing, { className: "note" }));
    cards[model.role] = { body, missing: model.missing, text: null };
    return card;
  }));
}

async function ask(kind) {
  const prompt = at("prompt").value;
  if (!prompt.trim()) { at("prompt").focus(); return say("Type a question first."); }
  if (stopping) stopping.abort();
  const mine = stopping = new AbortController();
  if (kind === "paraphrase" || kind === "samples") turn += 1;
  for (const card of Object.values(cards)) { card.text = null; if (!card.missing) card.body.replaceChildren(); }
  at("asked").hidden = true;
  at("stop").disabled = false;
  say("Asking …");
  const question = { prompt, kind, opening: at("opening").value, samples: Number(at("samples").value), turn };
  try {
    const answer = await fetch("/api/ask?run=" + encodeURIComponent(at("run").value), {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question), signal: mine.signal });
    if (!answer.ok) return say((await answer.json()).error);
    await lines(answer.body, event => { if (stopping === mine) happened(event); });
  } catch (error) {
    if (stopping === mine) say(error.name === "AbortError" ? "Stopped." : "The server does not answer any more: is excise play still running?");
  } finally {
    if (stopping === mine) { stopping = null; at("stop").disabled = true; }
  }
}

async function lines(body, each) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    parts.filter(Boolean).forEach(line => each(JSON.parse(line)));
  }
}

function happened(event) {
  const card = cards[event.model];
  const title = event.model ? at("title-" + event.model).textContent : "";
  if (event.event === "waiting") say("Another question is being answered; this one waits.");
  if (event.event === "asked") {
    at("asked").textContent = "Asked: " + event.prompt + (event.opening ? "\nStart of the answer: " + event.opening : "");
    at("asked").hidden = event.kind === "plain";
  }
  if (event.event === "loading") say("Loading: " + title + " …");
  if (event.event === "text") {
    if (!card.text) { card.text = make("p", "", { className: "answer" }); card.body.append(card.text); say("Writing: " + title + " …"); }
    card.text.textContent += event.text;
  }
  if (event.event === "answers") card.body.replaceChildren(...event.answers.map(text => make("p", text || "(nothing)", { className: "answer" })));
  if (event.event === "heat") heat(card, title, event);
  if (event.event === "error") card ? card.body.append(make("p", event.text, { className: "note wrong" })) : say(event.text);
  if (event.event === "done") say("Done.");
}

function heat(card, title, event) {
  event.answers.forEach((tokens, number) => {
    const map = make("p", "", { className: "heat" });
    map.tokens = tokens;
    map.append(...tokens.map(token => make("span", token.text, { title: told(token) })));
    map.setAttribute("aria-hidden", "true");
    const name = "Tokens of " + title + (event.answers.length > 1 ? ", answer " + (number + 1) : "");
    card.body.append(map, table(tokens, name));
  });
  if (event.missing) card.body.append(make("p", event.missing, { className: "note" }));
  paint();
}

const shown = value => value === null ? "–" : value.toFixed(2);
const told = token => "φ " + shown(token.phi) + ", log p " + shown(token.logp) + ", change " + shown(token.change);

function table(tokens, name) {
  const details = make("details"), scroll = make("div", "", { className: "scroll", tabIndex: 0 }), rows = make("table"), head = make("tr"), body = make("tbody");
  for (const column of ["token", "φ", "log p", "change"]) head.append(make("th", column, { scope: "col" }));
  for (const token of tokens) {
    const row = make("tr");
    row.append(make("th", JSON.stringify(token.text), { scope: "row" }), ...[token.phi, token.logp, token.change].map(v => make("td", shown(v))));
    body.append(row);
  }
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", name);
  const top = make("thead");
  top.append(head);
  rows.append(top, body);
  scroll.append(rows);
  details.append(make("summary", "The numbers"), scroll);
  return details;
}

function paint() {
  const key = document.querySelector("input[name=heat]:checked").value;
  for (const map of document.querySelectorAll(".heat")) {
    const values = map.tokens.map(token => token[key] ?? 0);
    const most = Math.max(...values.map(Math.abs), key === "phi" ? 1e-9 : 1);
    [...map.children].forEach((span, i) => {
      const tone = key === "phi" ? "--heat" : values[i] < 0 ? "--fell" : "--rose";
      const strength = Math.min(1, Math.abs(values[i]) / most) * .6;
      span.style.background = strength > .02 ? "rgb(var(" + tone + ") / " + strength.toFixed(3) + ")" : "none";
    });
  }
}

at("run").addEventListener("change", () => { if (stopping) stopping.abort(); choose(); });
at("known").addEventListener("change", () => { at("prompt").value = at("known").value; at("prompt").focus(); });
at("form").addEventListener("submit", event => { event.preventDefault(); ask(event.submitter?.dataset.kind ?? "plain"); });
at("prompt").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); ask("plain"); }
});
at("stop").addEventListener("click", () => stopping?.abort());
document.addEventListener("keydown", event => { if (event.key === "Escape") stopping?.abort(); });
for (const choice of document.querySelectorAll("input[name=heat]")) choice.addEventListener("change", paint);
begin().catch(() => say("The server does not answer: is excise play still running?"));
