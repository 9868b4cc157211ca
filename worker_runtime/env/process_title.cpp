#include "worker_runtime/env/process_title.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

#include "base/os/read_files.hpp"

namespace ddprun::worker {

namespace {

/// With the NUL at its end.
constexpr std::size_t kNameBytes = 16;

struct CommandLine {
    std::uintptr_t start = 0;
    std::uintptr_t end = 0;
};

/// Zeros: the kernel does not report it.
CommandLine command_line() {
    const std::string stat = read_whole("/proc/self/stat").value_or("");
    const std::size_t name_end = stat.rfind(')');
    CommandLine found;
    if (name_end != std::string::npos) {
        std::istringstream fields(stat.substr(name_end + 1));
        constexpr int kBefore =
            45;  // Fields from the third on, as proc(5) counts them, to the 48th.
        std::string field;
        for (int i = 0; i < kBefore; ++i) {
            fields >> field;
        }
        fields >> found.start >> found.end;
    }
    return found.end > found.start ? found : CommandLine{};
}

std::string exchange_name(const std::string& name) {
    std::string before(kNameBytes, '\0');
    (void)prctl(PR_GET_NAME, before.data());
    (void)prctl(PR_SET_NAME, name.c_str());
    return before;
}

}  // namespace

ProcessTitle::ProcessTitle(const std::string& name, const std::string& title,
                           const std::string& shorter) {
    const CommandLine line = command_line();
    if (line.start == 0) {
        return;
    }
    const std::size_t size = line.end - line.start;
    start_ = reinterpret_cast<char*>(line.start);
    line_.assign(start_, size);
    // A NUL at its end is the kernel's sign that it ends there.
    std::string text = title.size() < size ? title : shorter;
    text.resize(size - 1);
    text.push_back('\0');
    std::copy(text.begin(), text.end(), start_);
    name_before_ = exchange_name(name);
}

void ProcessTitle::end() {
    if (start_ != nullptr) {
        std::copy(line_.begin(), line_.end(), start_);
        (void)exchange_name(name_before_);
        start_ = nullptr;
    }
}

}  // namespace ddprun::worker
