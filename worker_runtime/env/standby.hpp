#pragma once

namespace ddprun::worker {

/// To be called before main() and before what the program itself initialises, by a constructor of
/// the runtime that is linked into the program (`place_in_program` is any address in it): nothing
/// of the program's own has run then.
///
/// In a standby this waits for the worker's place, and returns once this process is the worker: the
/// variables, stdout and stderr are that one's. Else it ends the process: a standby never runs
/// main() without a place. In a cold worker that is to report, it reports to the agent that this
/// program waits here. Anywhere else, in a worker's descendants too, it does nothing. The messages
/// are in worker_runtime/python/INTERNALS.md.
void wait_for_place(const void* place_in_program);

}  // namespace ddprun::worker
