#include "agent/process/stacks_program.hpp"

#include <unistd.h>

#include <cstdlib>

#include <fmt/format.h>

#include "base/os/start_program.hpp"
#include "base/search_path.hpp"

namespace ddprun::agent {

Result<std::vector<std::string>> stacks_command(const StacksOrder& order) {
    Result<std::string> path = path_beside_us(std::string{kStacksProgram});
    if (!path) {
        return path.error();
    }
    const Milliseconds own_timeout = order.timeout - order.timeout / 10;
    std::vector<std::string> command = {std::move(*path), order.folder,
                                        std::to_string(own_timeout.count()),
                                        std::to_string(order.bytes_max), order.program};
    for (const auto& [rank, pid] : order.workers) {
        command.push_back(fmt::format("{}:{}", rank, pid));
    }
    return command;
}

std::string stack_tool_in_path(std::string_view name) {
    const char* variable = std::getenv("PATH");
    for (const std::string& path :
         places_in_path(variable == nullptr ? kDefaultSearchPath : variable, name)) {
        // A tool that lies in the working folder is not one to be run on a user's workers.
        if (path[0] == '/' && access(path.c_str(), X_OK) == 0) {
            return path;
        }
    }
    return {};
}

std::string path_of_py_spy(const std::string& program) {
    const std::size_t slash = program.rfind('/');
    if (slash != std::string::npos) {
        std::string path = program.substr(0, slash) + "/py-spy";
        if (access(path.c_str(), X_OK) == 0) {
            return path;
        }
    }
    return stack_tool_in_path("py-spy");
}

std::string no_py_spy_text(const std::string& program) {
    return fmt::format(
        "Python's stacks are not among them: there is no py-spy beside {} nor in PATH; get it "
        "with: {} -m pip install py-spy",
        program, program);
}

std::string stacks_file(const std::string& folder, int rank) {
    return fmt::format("{}/rank{}.txt", folder, rank);
}

}  // namespace ddprun::agent
