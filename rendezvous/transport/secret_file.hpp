#pragma once

#include <string>

#include "base/result.hpp"
#include "rendezvous/wire/secret.hpp"

namespace ddprun::rdzv {

/// Which file holds the job secret: `given` (--secret-file) if not empty, else DDPRUN_SECRET_FILE,
/// else ddprun/secret in XDG_CONFIG_HOME or ~/.config. Empty when there is no home directory.
[[nodiscard]] std::string secret_file_path(const std::string& given);

/// Reads the job secret from secret_file_path(given): 64 hexadecimal digits. The default file is
/// created with mode 0600 if it is not there; of several processes that do so at once, on several
/// machines with a shared home too, one wins and the others read its file. A file that was named
/// is never created. Refuses a file that others may read or that another user owns. Blocks on the
/// file system: for start-up only.
[[nodiscard]] Result<JobSecret> load_or_create_secret(const std::string& given);

/// The same of the file `path`, which is created there if it is not.
[[nodiscard]] Result<JobSecret> load_or_create_secret_at(const std::string& path);

/// The same without making a file: for programs that ask a rendezvous which another one started.
[[nodiscard]] Result<JobSecret> load_secret(const std::string& given);

}  // namespace ddprun::rdzv
