// Tokens, and what an operator may ask for: nothing is asked without a second, plain question.
import * as ask from './ask.js';
import {$, say} from './views.js';

const ACTS = {
  restart: {title: 'Restart the workers?', button: 'Restart',
    what: ({job}) => `All workers of ${job} are stopped, asked to save first, and start again as a new generation.`},
  stop: {title: 'Stop the job?', button: 'Stop the job',
    what: ({job}) => `All workers of ${job} are asked to save and leave. The job is over then: nothing starts it again.`},
  drain: {title: 'Drain this node?', button: 'Drain',
    what: ({job, node}) => `${node.hostname || node.node} leaves ${job}: its workers are asked to save, and the job goes on without it, if enough nodes are left.`},
  quarantine: {title: 'Quarantine this node?', button: 'Quarantine', minutes: true,
    what: ({job, node}) => `${node.hostname || node.node} is left out of the generations of ${job} for a while, if enough others are there.`},
  release: {title: 'Release?', button: 'Release',
    what: ({job, node}) => (node ? `The quarantine of ${node.hostname || node.node} ends: ${job} may take it again.`
      : `The hold of ${job} ends: its next generation starts as soon as it can.`)},
  hold: {title: 'Hold the job?', button: 'Hold', minutes: true,
    what: ({job}) => `No generation of ${job} starts before that time is over. Workers that run are left alone.`},
  grow: {title: 'Grow the job?', button: 'Grow', count: ({target, most}) => target || most,
    what: ({job, sizes}) => `${job} takes up to so many nodes from now on (--nnodes ${sizes}); spares are taken at once, for which all workers save and start again.`},
  shrink: {title: 'Shrink the job?', button: 'Shrink', count: ({here}) => Math.max(1, here - 1),
    what: ({job, sizes}) => `${job} takes at most so many nodes from now on (--nnodes ${sizes}). If it has more, all workers save, and the others wait as spares.`},
};

const MESSAGES = {401: 'The token is not that which ddpctl token prints of the --operator-secret-file.',
  403: 'This rendezvous takes no orders: it was started without --operator-secret-file.'};

/** Closes by its cancel button, by Escape, and when `submits()` answers true. */
function open(dialog, submits) {
  const form = dialog.querySelector('form');
  dialog.querySelector('button[value=cancel]').onclick = () => dialog.close();
  form.onsubmit = async (event) => {
    event.preventDefault();
    if (await submits()) dialog.close();
  };
  dialog.showModal();
}

/** `changed()`: other tokens are used from now on. */
export function askForTokens(why, changed) {
  say($('token-why'), why);
  $('token-why').hidden = why === '';
  if ($('token-dialog').open) return;
  open($('token-dialog'), () => {
    ask.setTokens($('token-look').value, $('token-act').value);
    changed();
    return true;
  });
}

/**
 * `to`: {job, node, sizes, most, target, here}: the node of its status where it is about one, --nnodes,
 * the most nodes of that, how many an operator wants (0: as many as that), how many it has.
 */
export function confirmAct(action, to) {
  const act = ACTS[action];
  const button = $('act-dialog').querySelector('button[type=submit]');
  say($('act-title'), act.title);
  say($('act-what'), act.what(to));
  say($('act-said'), '');
  say(button, act.button);
  button.hidden = button.disabled = false;
  $('act-minutes').hidden = $('act-for').disabled = !act.minutes;
  $('act-nodes').hidden = $('act-count').disabled = !act.count;
  if (act.count) $('act-count').value = act.count(to);
  open($('act-dialog'), async () => {
    const body = to.node ? {node: to.node.node} : {};
    if (act.count) body.nodes = Number($('act-count').value);
    if (act.minutes) body.for_s = 60 * Number($('act-for').value);
    button.disabled = true;
    try {
      const number = await ask.act(to.job, action, body);
      say($('act-said'), `Asked for; event ${number} records it.`);
      button.hidden = true;
    } catch (failure) {
      say($('act-said'), MESSAGES[failure.status] ?? failure.message);
      button.disabled = false;
    }
    return false;
  });
}
