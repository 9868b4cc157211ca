#pragma once

namespace ddprun::rdzv {

/// Raises this process's soft limit of open files to the hard one: thousands of connections need
/// more than the usual soft limit. What cannot be raised stays as it is.
void raise_open_files();

}  // namespace ddprun::rdzv
