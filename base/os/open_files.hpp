#pragma once

#include <cstddef>

namespace ddprun {

/// Raises this process's soft limit of open files to the hard one, because thousands of connections
/// need more than the usual soft limit, and has the kernel make room for `expected` of them, of
/// 65,536 at most. A limit that cannot be raised stays as it is.
///
/// Call it before there is a second thread: from then on the kernel waits for all processors
/// (synchronize_rcu() in expand_fdtable()) whenever the descriptors pass a power of two. If many
/// clients connect meanwhile, some find no place in the backlog, and try again only a second later.
void raise_open_files(std::size_t expected = 0);

}  // namespace ddprun
