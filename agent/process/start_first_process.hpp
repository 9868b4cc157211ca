#pragma once

#include "base/os/start_program.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

/// As start_program(), and the program is the first process of a new PID namespace, with a /proc of
/// its own: when it ends, however it ends, the kernel kills all others in there first. It dies
/// with the thread that calls this. If this process may not make one (CAP_SYS_ADMIN), it is made in
/// a user namespace, in which every user but this one is nobody.
///
/// `outer_descriptors` becomes the program's descriptor of its own /proc/self/fdinfo in the /proc
/// of this process, for OuterPids. There is no half-way state: the error says what is missing, and
/// then nothing was started.
[[nodiscard]] Result<StartedProgram> start_first_process(const ProgramSpec& spec,
                                                         int outer_descriptors);

/// Whether that can be had here: all of it is done, but no program executed.
[[nodiscard]] Result<void> try_first_process();

}  // namespace ddprun::agent
