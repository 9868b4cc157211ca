#include "worker_runtime/checkpoint/old_checkpoints.hpp"

#include <sys/resource.h>

#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "worker_runtime/checkpoint/folder.hpp"

namespace ddprun::worker {

OldCheckpoints::OldCheckpoints(std::function<void(const std::string&)> on_warning)
    : on_warning_(std::move(on_warning)) {}

OldCheckpoints::~OldCheckpoints() {
    wait();
}

void OldCheckpoints::remove(std::vector<std::string> folders) {
    wait();
    if (folders.empty()) {
        return;
    }
    try {
        thread_ = std::thread([this, folders] {
            constexpr int kLowestPriority = 19;
            (void)::setpriority(PRIO_PROCESS, 0, kLowestPriority);
            remove_folders(folders, on_warning_);
        });
    } catch (const std::system_error&) {
        remove_folders(folders, on_warning_);  // Without a thread the save waits.
    }
}

void OldCheckpoints::wait() {
    if (thread_.joinable()) {
        thread_.join();
    }
}

void remove_folders(const std::vector<std::string>& folders,
                    const std::function<void(const std::string&)>& on_warning) {
    for (const std::string& folder : folders) {
        if (!remove_all_of(folder)) {
            on_warning(fmt::format("old checkpoint {} cannot be removed", folder));
        }
    }
}

}  // namespace ddprun::worker
