#pragma once

#include <filesystem>
#include <system_error>

namespace ddprun {

/// Calls `visit` with the path of each entry of `folder`, in no order, as far as they can be read;
/// with none if it is not there.
template <typename Visit>
void visit_folder(const std::filesystem::path& folder, Visit visit) {
    std::error_code failure;
    for (std::filesystem::directory_iterator entry(folder, failure), end; !failure && entry != end;
         entry.increment(failure)) {
        visit(entry->path());
    }
}

}  // namespace ddprun
