#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace ddprun::worker {

/// Removes folders whose names readers ignore, on a thread of its own of the lowest priority, so
/// that a save does not wait for it. If the process dies meanwhile, remove_leftovers() removes the
/// rest. One thread at a time.
class OldCheckpoints {
public:
    /// `on_warning` gets a line, on that thread, for a folder that cannot be removed.
    explicit OldCheckpoints(std::function<void(const std::string&)> on_warning);
    /// Waits until all are removed.
    ~OldCheckpoints();
    OldCheckpoints(const OldCheckpoints&) = delete;
    OldCheckpoints& operator=(const OldCheckpoints&) = delete;

    /// Waits for the folders before, and begins with these.
    void remove(std::vector<std::string> folders);
    /// Waits until all are removed: their space is free.
    void wait();

private:
    std::function<void(const std::string&)> on_warning_;
    std::thread thread_;
};

/// Removes `folders`; `on_warning` gets a line for each that cannot be removed.
void remove_folders(const std::vector<std::string>& folders,
                    const std::function<void(const std::string&)>& on_warning);

}  // namespace ddprun::worker
