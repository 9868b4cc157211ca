#pragma once

#include <string>

namespace ddprun::worker {

/// Shown by `ps` and `top` in place of this process's command line and name, until end(). Takes the
/// bytes of the command line, to which other code may have kept a pointer, so nothing
/// else may run in between. If /proc does not report their addresses, nothing is shown.
class ProcessTitle {
public:
    /// `name` is for `top`, which shows 15 bytes. `shorter` is for a command line that has no room
    /// for `title`; what does not fit is cut off.
    ProcessTitle(const std::string& name, const std::string& title, const std::string& shorter);
    ProcessTitle(const ProcessTitle&) = delete;
    ProcessTitle& operator=(const ProcessTitle&) = delete;

    void end();

private:
    char* start_ = nullptr;    ///< of the command line; null: nothing is shown
    std::string line_;         ///< the bytes before
    std::string name_before_;  ///< what the kernel called the process
};

}  // namespace ddprun::worker
