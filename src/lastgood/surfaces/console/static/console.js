// The console's own script. Pages work without it; with it they follow sessions live, send forms without a
// reload and copy snippets. Text from the server or a model only ever becomes text, never markup.
"use strict";

const byId = (id) => document.getElementById(id);

// -- notices ------------------------------------------------------------------------------------------

let noticeTimer;
function notice(text, good = false) {
  const box = byId("notice");
  box.textContent = text;
  box.classList.toggle("good", good);
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => { box.textContent = ""; }, good ? 2500 : 12000);
}

// -- a login that has ended -------------------------------------------------------------------------------
// The page is left for the login, unless that would lose what somebody has typed.

class LoginEnded extends Error {}

let hasLogin = true;
function loginEnded() {
  const typed = [...document.querySelectorAll("main textarea, main input[name=reason]")];
  if (!typed.some((one) => one.value.trim())) { location.reload(); return; }
  showState("Logged out", "lost");
  if (!hasLogin) return;
  hasLogin = false;
  notice("Your login has ended. ");
  clearTimeout(noticeTimer);
  const link = document.createElement("a");
  link.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
  link.target = "_blank";
  link.textContent = "Log in again in a new tab";
  byId("notice").append(link, ", then send from this page. Your text stays here.");
}

function loginFound() {
  if (hasLogin) return;
  hasLogin = true;
  byId("notice").textContent = "";
}

// -- a server that hangs ------------------------------------------------------------------------------------
// It takes requests and answers none. Who waits for ever never says that something is wrong.

const READ_SECONDS = 20;
const SEND_SECONDS = 60;
async function inTime(seconds, work) {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), seconds * 1000);
  try { return await work(abort.signal); } finally { clearTimeout(timer); }
}

// -- reading the page again -------------------------------------------------------------------------------
// Only regions whose markup has changed are replaced. What is open stays open, what has the focus keeps it,
// and what the reader reads stays where it is on the screen, whatever was added or removed above it.

let refreshing = null;
let again = false;
async function refresh() {
  if (refreshing) { again = true; return refreshing; }
  refreshing = (async () => {
    do {
      again = false;
      const [answer, text] = await inTime(READ_SECONDS, async (signal) => {
        const given = await fetch(location.pathname + location.search, { headers: { accept: "text/html" }, signal });
        return [given, await given.text()];
      });
      if (answer.redirected && new URL(answer.url).pathname === "/login") { loginEnded(); throw new LoginEnded(); }
      if (!answer.ok) throw new Error(String(answer.status));
      loginFound();
      const fresh = new DOMParser().parseFromString(text, "text/html");
      const place = readingPlace();
      for (const region of document.querySelectorAll("[data-region]")) {
        const next = fresh.getElementById(region.id);
        if (next && next.innerHTML !== region.dataset.known) replaceRegion(region, next);
      }
      keepPlace(place);
    } while (again);
  })().finally(() => { refreshing = null; });
  return refreshing;
}

function replaceRegion(region, next) {
  const known = next.innerHTML;
  const active = document.activeElement;
  const pending = (one) => questionsOf(next).some((fresh) => fresh.dataset.question === one.dataset.question);
  const isGone = active.closest("[data-question]") && !pending(active.closest("[data-question]"));
  const busy = region.contains(active) && active.matches("input, textarea, select") && !isGone;
  const selected = !document.getSelection().isCollapsed && region.contains(document.getSelection().anchorNode);
  if ((busy && active.value) || selected) return; // somebody is typing or selecting there
  const open = new Set([...region.querySelectorAll("details[open][data-key]")].map((one) => one.dataset.key));
  const asked = questionsOf(region);
  const focused = region.contains(active) ? active : null;
  const answered = focused?.closest("[data-question]");
  const focus = answered ? null : focusPath(region);
  keepQuestions(asked, next);
  region.replaceChildren(...next.childNodes);
  region.dataset.known = known;
  // Never on a control of another question: its own element says what it is about.
  if (answered) (answered.isConnected ? focused : questionsOf(region)[0])?.focus({ preventScroll: true });
  if (questionsOf(region).some((one) => !asked.includes(one)) || asked.some((one) => !one.isConnected)) holdAnswers(region);
  for (const one of region.querySelectorAll("details[data-key]")) if (open.has(one.dataset.key)) one.open = true;
  if (focus !== null) alike(region, focus.wanted)[focus.place]?.focus({ preventScroll: true });
}

const KEYED = "[data-region] [data-key], [data-region] li.turn";
const keyOf = (element) => element.dataset.key ?? element.id;
const isFollowing = () => innerHeight + scrollY >= document.body.scrollHeight - 80;

// The elements in view, from the top, each with its distance from the edge. At the top of a page nothing is
// kept, so that what is new on top comes into sight; at the end of a conversation, its end is.
function readingPlace() {
  const place = { x: scrollX, y: scrollY, seen: [], isEnd: byId("composer") !== null && isFollowing() };
  if (scrollY <= 0 || place.isEnd) return place;
  for (const one of document.querySelectorAll(KEYED)) {
    const box = one.getBoundingClientRect();
    if (box.height && box.bottom > 0 && box.top < innerHeight) place.seen.push([keyOf(one), box.top]);
  }
  return place;
}

function keepPlace(place) {
  if (place.isEnd) { scrollTo(place.x, document.body.scrollHeight); return; }
  const now = new Map([...document.querySelectorAll(KEYED)].map((one) => [keyOf(one), one]));
  const [key, top] = place.seen.find(([key]) => now.has(key)) ?? [];
  scrollTo(place.x, key === undefined ? place.y : scrollY + now.get(key).getBoundingClientRect().top - top);
}

// -- questions ----------------------------------------------------------------------------------------------
// Nobody may approve what they have not read. A question keeps its element for as long as it is pending, with
// what was typed and with the focus. If questions come or go, another button may lie under the pointer, or
// get the next Enter: then no answer counts for a moment.

const HOLD_MILLISECONDS = 1000;
const questionsOf = (part) => [...part.querySelectorAll("[data-question]")];

function keepQuestions(known, next) {
  const shown = new Map(known.map((one) => [one.dataset.question, one]));
  for (const fresh of questionsOf(next)) {
    const kept = shown.get(fresh.dataset.question);
    if (!kept) continue;
    kept.querySelector(".facts").replaceWith(fresh.querySelector(".facts")); // the time that is left
    fresh.replaceWith(kept);
  }
}

const held = { buttons: new Set(), timer: null, focused: null };
function holdAnswers(part) {
  for (const one of questionsOf(part).flatMap((question) => [...question.querySelectorAll("button:not([disabled])")])) {
    if (one === document.activeElement) held.focused = one;
    held.buttons.add(one);
    one.disabled = true;
  }
  clearTimeout(held.timer);
  held.timer = setTimeout(() => {
    held.buttons.forEach((one) => { one.disabled = false; });
    if (document.activeElement === document.body) held.focused?.focus({ preventScroll: true });
    held.buttons.clear();
    held.focused = null;
  }, HOLD_MILLISECONDS);
}

// What has the focus is found again by what it does: at its old place there may be another entry's button.
const FOCUSABLE = "a[href], button, input, select, textarea, summary, pre[tabindex]";
function doing(one) {
  const details = one.matches("summary") ? one.parentElement.dataset.key : undefined;
  const form = one.closest("form")?.getAttribute("action");
  return JSON.stringify([
    one.tagName, one.getAttribute("href"), form, one.name, one.getAttribute("aria-label"), details ?? one.textContent,
  ]);
}

function focusPath(region) {
  const at = document.activeElement;
  if (!region.contains(at) || !at.matches(FOCUSABLE)) return null;
  const wanted = doing(at);
  return { wanted, place: alike(region, wanted).indexOf(at) };
}

const alike = (region, wanted) => [...region.querySelectorAll(FOCUSABLE)].filter((one) => doing(one) === wanted);

// -- live, paused, lost -------------------------------------------------------------------------------------

const bar = document.querySelector(".live-bar");
const live = { paused: false, missed: 0 };
function showState(word, kind = "") {
  if (!bar) return;
  bar.classList.toggle("paused", kind === "paused");
  bar.classList.toggle("lost", kind === "lost");
  const state = bar.querySelector(".live-state");
  if (state.textContent !== word) state.textContent = word;
}

async function poll() {
  // No event says that somebody else has answered, so a page with a question reads itself again, too.
  if (live.paused || document.hidden || (follower?.isOpen() && !questionsOf(document).length)) return;
  try {
    await refresh();
    if (!live.paused) showState("Live");
  } catch (error) {
    if (!(error instanceof LoginEnded) && !live.paused) showState("Server not reachable, trying again", "lost");
  }
}

function startPolling(seconds) {
  setInterval(poll, seconds * 1000);
  document.addEventListener("visibilitychange", poll); // who comes back to a tab does not wait for the next round
  addEventListener("offline", () => { if (!live.paused) showState("Offline", "lost"); });
  addEventListener("online", () => { follower?.reopen(); poll(); });
}

function togglePause(button) {
  if (!live.paused) follower?.flush();
  live.paused = !live.paused;
  button.setAttribute("aria-pressed", String(live.paused));
  button.textContent = live.paused ? "Resume" : "Pause";
  showState(live.paused ? "Paused" : "Live", live.paused ? "paused" : "");
  if (!live.paused) { live.missed = 0; follower?.restart(); refresh().catch(() => {}); }
}

// -- how many questions wait ------------------------------------------------------------------------------
// Beside "Approvals" and in the title of every page, so that a tab in the background shows it, too.

const COUNT_MILLISECONDS = 5000;
const COUNT_HIDDEN_MILLISECONDS = 15000;
const badge = byId("count");
const ownTitle = document.title;

function showCount(count) {
  badge.hidden = count === "0";
  const shown = badge.querySelector("[data-count]");
  if (shown.textContent !== count) shown.textContent = count;
  document.title = count === "0" ? ownTitle : `(${count}) ${ownTitle}`;
}

async function readCount() {
  if (!live.paused) {
    try {
      const count = await inTime(READ_SECONDS, async (signal) => {
        const answer = await fetch("/approvals/count.json", { headers: { accept: "application/json" }, signal });
        return answer.ok ? answer.json() : null;
      });
      if (count) showCount(`${count.waiting}${count.is_more ? "+" : ""}`);
    } catch { /* the server is away; the next one tells */ }
  }
  setTimeout(readCount, document.hidden ? COUNT_HIDDEN_MILLISECONDS : COUNT_MILLISECONDS);
}

// -- one session's events ---------------------------------------------------------------------------------

// A turn that has run for an hour sends ten thousands of events to a page that is opened, all at once.
const FLUSH_MILLISECONDS = 20;
const CHUNKS = new Set(["agent_choice", "agent_choice_reasoning"]);
let follower = null;

class Follower {
  constructor(session) {
    this.url = `/api/sessions/${encodeURIComponent(session)}/events`;
    this.box = byId("live");
    this.last = null; // the id of the last event that was seen
    this.wait = 500;
    this.pending = [];
    this.timer = null;
    this.open();
  }

  position() { return byId("position").dataset; }
  isOpen() { return this.source?.readyState === EventSource.OPEN; }

  open() {
    const at = this.position();
    // Of a turn that runs, everything is shown from its beginning; what belongs to others is skipped.
    const since = this.last ?? (at.attempt ? at.firstEvent : at.lastEvent);
    this.only = this.last === null && at.attempt ? at.attempt : null;
    this.source = new EventSource(`${this.url}?since=${since}`);
    this.source.onopen = () => {
      this.wait = 500;
      if (!live.paused) showState("Live");
      if (this.wasLost) { this.wasLost = false; refresh().catch(() => {}); }
    };
    this.source.onmessage = (event) => {
      if (event.lastEventId) this.last = event.lastEventId;
      this.take(JSON.parse(event.data));
    };
    this.source.onerror = () => {
      this.wasLost = true;
      if (!live.paused && hasLogin) showState("Connection lost, reconnecting", "lost");
      this.source.close();
      this.retry = setTimeout(() => this.open(), this.wait);
      this.wait = Math.min(this.wait * 2, 8000);
    };
  }

  restart() { this.clear(); }

  // A connection that broke while the machine was asleep or offline may look open for minutes.
  reopen() {
    this.source.close();
    clearTimeout(this.retry);
    this.wasLost = true;
    this.open();
  }

  take(event) {
    if (live.paused) {
      live.missed += 1;
      showState(`Paused, ${live.missed} update${live.missed > 1 ? "s" : ""} not shown`, "paused");
      return;
    }
    if (this.only && event.attempt && event.attempt !== this.only) return;
    const before = this.pending.at(-1);
    if (before && CHUNKS.has(event.type) && before.type === event.type) before.content += event.content;
    else this.pending.push(event);
    this.timer ??= setTimeout(() => this.flush(), FLUSH_MILLISECONDS);
  }

  // Together: each time the page is measured, the browser lays it out.
  flush() {
    const events = this.pending;
    this.pending = [];
    this.timer = null;
    const follows = isFollowing();
    events.forEach((event) => this.show(event));
    if (follows) scrollTo(0, document.body.scrollHeight);
  }

  show(event) {
    switch (event.type) {
      case "stream_started":
        this.clear();
        this.activity("Working…");
        this.changed();
        break;
      case "agent_choice": this.piece("message assistant", "text", event.content); break;
      case "agent_choice_reasoning": this.piece("message reasoning", "text", event.content); break;
      case "tool_call": this.call(event.tool_call); break;
      case "tool_call_output": this.output(event.tool_call_id, event.output, true); break;
      case "tool_call_response": this.output(event.tool_call_id, event.response, false); break;
      case "warning": this.activity(event.message); break;
      case "model_fallback": this.activity("Another model is tried"); break;
      case "tool_call_confirmation": this.activity("Waits for an approval"); this.changed(); break;
      case "resync": case "session_title": this.changed(); break;
      case "turn_committed": case "turn_failed": case "stream_stopped":
        this.only = null;
        refresh().then(() => this.clear()).catch(() => {});
        break;
      case "session_exited": this.source.close(); location.assign("/sessions"); break;
    }
  }

  changed() { refresh().catch(() => {}); }
  clear() { this.box.replaceChildren(); this.box.hidden = true; this.current = null; }

  element(parent, tag, classes, text = "") {
    const made = document.createElement(tag);
    made.className = classes;
    made.textContent = text;
    parent.append(made);
    this.box.hidden = false;
    return made;
  }

  activity(text) {
    const line = this.box.querySelector(".activity") ?? this.element(this.box, "p", "activity");
    line.textContent = text;
    this.box.hidden = false;
  }

  piece(classes, inner, text) {
    this.box.querySelector(".activity")?.remove();
    if (this.current?.kind !== classes) {
      const message = this.element(this.box, "div", classes);
      this.current = { kind: classes, text: this.element(message, "div", inner) };
    }
    this.current.text.append(text);
  }

  call(call) {
    this.current = null;
    this.box.querySelector(".activity")?.remove();
    const box = this.element(this.box, "details", "tool pending");
    box.dataset.call = call.id;
    const summary = this.element(box, "summary", "");
    this.element(summary, "span", "tool-name", call.function.name);
    summary.append(" ");
    this.element(summary, "code", "", call.function.arguments.slice(0, 100));
    const pair = this.element(box, "div", "pair");
    this.element(pair, "pre", "", call.function.arguments);
    this.element(pair, "pre", "output");
  }

  output(id, text, isMore) {
    const box = [...this.box.querySelectorAll("[data-call]")].find((one) => one.dataset.call === id);
    if (!box) return;
    const output = box.querySelector(".output");
    output.textContent = isMore ? output.textContent + text : text;
    if (!isMore) { box.classList.remove("pending"); this.activity("Working…"); }
  }
}

// -- forms --------------------------------------------------------------------------------------------------

async function send(form, submitter) {
  const target = submitter?.hasAttribute("formaction") ? submitter.formAction : form.action;
  if (target === form.action) keyFor(form);
  const fields = new URLSearchParams(new FormData(form, submitter ?? undefined));
  const buttons = [...form.querySelectorAll("button")];
  buttons.forEach((one) => { one.disabled = true; });
  try {
    const [answer, reply] = await inTime(SEND_SECONDS, async (signal) => {
      const given = await fetch(target, { method: "POST", body: fields, headers: { accept: "application/json" }, signal });
      return [given, given.status === 401 ? null : await given.json()];
    });
    if (answer.status === 401) { loginEnded(); return; }
    if (!answer.ok) { notice(reply.message ?? "Not possible"); return; }
    if (target === form.action) sent(form);
    const there = new URL(reply.location, location.href);
    if (there.pathname !== location.pathname) { location.assign(there); return; }
    await refresh();
    const answered = form.closest("[data-question]");
    if (answered && !answered.isConnected && document.activeElement === document.body) questionsOf(document)[0]?.focus({ preventScroll: true });
  } catch {
    notice("The server did not answer. Nothing was lost: send it again.");
  } finally {
    buttons.forEach((one) => { one.disabled = false; });
  }
}

// A key stands for one message: sent again as it was, it runs once. Changed after an answer that was lost, it
// is another message.
const sentAs = new WeakMap();
function keyFor(form) {
  const fields = new FormData(form);
  fields.delete("key");
  const message = new URLSearchParams(fields).toString();
  if (sentAs.has(form) && sentAs.get(form) !== message) newKey(form);
  sentAs.set(form, message);
}

function newKey(form) {
  sentAs.delete(form);
  const key = form.elements.namedItem("key");
  if (key) key.value = [...crypto.getRandomValues(new Uint8Array(12))].map((n) => n.toString(16).padStart(2, "0")).join("");
}

function sent(form) {
  const text = form.querySelector(".composer textarea");
  if (text) { text.value = ""; text.focus(); }
  newKey(form); // what was sent under the old one is done; the next message is another one
  if (form.matches(".composer")) scrollTo(0, document.body.scrollHeight);
}

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-async]")) return;
  event.preventDefault();
  send(event.target, event.submitter);
});

document.addEventListener("keydown", (event) => {
  const field = event.target;
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && field.matches("[data-submit-on-enter] textarea")) {
    event.preventDefault();
    const form = field.form;
    form.requestSubmit(form.querySelector("button[data-default]") ?? form.querySelector("button.primary"));
  } else if (event.key === "/" && !event.ctrlKey && !event.metaKey && !field.matches("input, textarea, select")) {
    const wanted = document.querySelector("[data-search]") ?? byId("text");
    if (wanted) { event.preventDefault(); wanted.focus(); }
  } else if (event.key === "Escape") {
    for (const menu of document.querySelectorAll(".menu[open]")) { menu.open = false; menu.querySelector("summary").focus(); }
  }
});

document.addEventListener("click", async (event) => {
  const pause = event.target.closest("[data-pause]");
  if (pause) { togglePause(pause); return; }
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    try {
      await navigator.clipboard.writeText(byId(copy.dataset.copy).textContent);
      notice("Copied", true);
    } catch {
      getSelection().selectAllChildren(byId(copy.dataset.copy));
      notice("Select and copy: this browser allows no access to the clipboard here.");
    }
  }
  for (const menu of document.querySelectorAll(".menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});

// -- start ------------------------------------------------------------------------------------------------

for (const region of document.querySelectorAll("[data-region]")) region.dataset.known = region.innerHTML;
holdAnswers(document);
const session = document.querySelector("[data-session]");
if (session && !location.hash && session.querySelector("#composer")) scrollTo(0, document.body.scrollHeight);
if (session?.dataset.streams) follower = new Follower(session.dataset.session);
if (badge) {
  showCount(badge.querySelector("[data-count]").textContent);
  setTimeout(readCount, COUNT_MILLISECONDS);
}
if (bar) startPolling(Number(bar.dataset.refresh));
