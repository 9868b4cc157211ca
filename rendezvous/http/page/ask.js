// Everything that goes over the network. Tokens are in this module's memory and nowhere else.

const tokens = {look: '', act: ''};
let isStranger = false; // without a token it is not answered
const RETRY_MS = [500, 1000, 2000, 5000, 10000];
const OVERLAP_MS = 5000; // in which a stream tells the event again that was heard last

export const setTokens = (look, act) => Object.assign(tokens, {look: look.trim(), act: act.trim()});
export const mayAct = () => tokens.act !== '';

/** An answer that is none: `status` is HTTP's, 0 without one. */
export class Refused extends Error {
  constructor(status, what) {
    super(what);
    this.status = status;
  }
}

/** An operator may look, too. */
const toLook = () => tokens.look || (isStranger ? tokens.act : '');
const bearer = (token) => (token ? {Authorization: `Bearer ${token}`} : {});

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, {cache: 'no-store', credentials: 'omit', redirect: 'error', ...options});
  } catch (failure) {
    if (failure.name === 'AbortError') throw failure;
    throw new Refused(0, 'nobody answers there');
  }
  if (!answer.ok) {
    const told = await answer.json().catch(() => ({}));
    throw new Refused(answer.status, told.error ?? `HTTP ${answer.status}`);
  }
  return answer;
}

export async function status() {
  const token = toLook();
  try {
    return await (await ask('status', {headers: bearer(token)})).json();
  } catch (failure) {
    isStranger ||= failure.status === 403 && token === '';
    throw failure;
  }
}

/** What a rank has written last, or where it is: text that its node sends. */
export async function read(job, what, rank) {
  const lines = what === 'logs' ? '&lines=200' : '';
  const path = `${what}?job=${encodeURIComponent(job)}&rank=${rank}${lines}`;
  return (await ask(path, {headers: bearer(toLook())})).text();
}

/** The number of the event that records it. */
export async function act(job, action, body) {
  const answer = await ask(`jobs/${encodeURIComponent(job)}/${action}`, {
    method: 'POST',
    headers: {'Content-Type': 'application/json', ...bearer(tokens.act)},
    body: JSON.stringify(body),
  });
  return (await answer.json()).event;
}

/** The data of server-sent events, as they come. */
async function* messages(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const parts = (rest + value).split('\n\n');
    rest = parts.pop();
    const told = [];
    for (const part of parts) {
      const data = part.split('\n').filter((line) => line.startsWith('data:'));
      if (data.length > 0) told.push(JSON.parse(data.map((line) => line.slice(5)).join('\n')));
    }
    if (told.length > 0) yield told;
  }
}

/**
 * Follows the events of a job until stop(). `hears(events)` gets them in order, `isAt()` tells the
 * last one that was kept, `isOver()` that none comes once the stream has ended, `begins()` is called
 * when what was kept is of another life of the stream, `says(text)` how the stream is: '' while it
 * comes. A fetch, not an EventSource: that has no headers.
 */
export class Stream {
  constructor(job, {hears, isAt, isOver, begins, says}) {
    Object.assign(this, {job, hears, isAt, isOver, begins, says});
    this.aborting = new AbortController();
    this.failures = 0;
    this.run();
  }

  stop() {
    this.aborting.abort();
  }

  async run() {
    while (!this.aborting.signal.aborted) {
      let why = 'the stream has ended';
      try {
        await this.once();
        if (this.isOver()) {
          this.says('the job is over');
          return;
        }
      } catch (failure) {
        if (this.aborting.signal.aborted) return;
        why = failure instanceof Refused ? failure.message : 'the stream was dropped';
      }
      const wait = RETRY_MS[Math.min(this.failures, RETRY_MS.length - 1)];
      this.failures += 1;
      this.says(`${why}; trying again in ${wait / 1000} s`);
      await new Promise((resolve) => {
        setTimeout(resolve, wait);
        this.aborting.signal.addEventListener('abort', resolve, {once: true});
      });
    }
  }

  /** A daemon that was started again numbers its events anew: the one heard last is asked again. */
  async once() {
    const last = this.isAt();
    const aborting = new AbortController();
    const passOn = () => aborting.abort();
    this.aborting.signal.addEventListener('abort', passOn, {once: true});
    let isAnother = false;
    const overlap = last && setTimeout(() => {
      isAnother = true;
      aborting.abort();
    }, OVERLAP_MS);
    try {
      const answer = await ask(`events?job=${encodeURIComponent(this.job)}&follow=1`, {
        headers: {Accept: 'text/event-stream', ...bearer(toLook()),
          ...(last ? {'Last-Event-ID': `${last.seq - 1}`} : {})},
        signal: aborting.signal,
      });
      this.says('');
      let expected = last;
      for await (let told of messages(answer)) {
        this.failures = 0;
        const first = expected && told.findIndex((event) => event.seq !== undefined);
        if (expected && first >= 0) {
          clearTimeout(overlap);
          if (told[first].seq !== expected.seq || told[first].mono_ns !== expected.mono_ns) {
            isAnother = true;
            break;
          }
          expected = null;
          told = told.toSpliced(first, 1);
        }
        if (told.length > 0) this.hears(told);
      }
    } catch (failure) {
      if (!isAnother) throw failure;
    } finally {
      clearTimeout(overlap);
      aborting.abort();
      this.aborting.signal.removeEventListener('abort', passOn);
    }
    if (isAnother) this.begins();
  }
}
