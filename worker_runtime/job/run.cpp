#include "worker_runtime/job/run.hpp"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/utils/cpp_stacktraces.h>

#include "base/limits.hpp"
#include "base/os/unix_time.hpp"
#include "worker_runtime/comm/exception_text.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun {

namespace {

constexpr int kExitFailed = 1;

/// LibTorch's backtrace is left out unless it is asked for as Python's users do.
std::string text_of(const std::exception& failure) {
    const auto* const error = dynamic_cast<const c10::Error*>(&failure);
    const std::string_view all = error != nullptr && !torch::get_cpp_stacktraces_enabled()
                                     ? error->what_without_backtrace()
                                     : failure.what();
    return all.find('\n') == std::string_view::npos ? worker::first_line(failure)
                                                    : std::string(all);
}

/// Writes the file as torch's launchers read it. A failure is ignored: stderr has the text, too.
void write_error_file(const std::string& message) {
    const char* const path = std::getenv(std::string(worker_variable::kErrorFile.key).c_str());
    if (path == nullptr || *path == '\0') {
        return;
    }
    // Escaped, it may grow sixfold; a file that is cut off would not be read.
    const std::size_t most = Limits{}.error_file_bytes_max / 8;
    const nlohmann::json content = {
        {"message",
         {{"message", message.substr(0, most)},
          {"extraInfo",
           {{"py_callstack", ""}, {"timestamp", std::to_string(unix_now().count() / 1000)}}}}}};
    std::ofstream(path) << content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// `who`: the program, and its rank once that is known.
int report(const std::string& who, const std::string& message) {
    write_error_file(message);
    fmt::print(stderr, "{}: {}\n", who, message);
    (void)std::fflush(stderr);
    return kExitFailed;
}

std::optional<std::string> failure_of(const std::function<void()>& action) {
    try {
        action();
        return std::nullopt;
    } catch (const std::exception& failure) {
        return text_of(failure);
    } catch (...) {
        return "an exception that is no std::exception";
    }
}

}  // namespace

int run(int argc, char** argv, const std::function<int(Worker&)>& body) {
    std::string_view path = argc > 0 ? argv[0] : "worker";
    path.remove_prefix(path.find_last_of('/') + 1);
    const std::string program(path);
    Result<Worker> made = Worker::from_environment();
    if (!made) {
        return report(program, made.error().what);
    }
    auto worker = std::make_unique<Worker>(std::move(*made));
    int exit_code = kExitFailed;
    const std::optional<std::string> failure = failure_of([&] { exit_code = body(*worker); });
    if (!failure) {
        return exit_code;
    }
    const std::string who =
        fmt::format("{}: rank {} of {}", program, worker->rank(), worker->world_size());
    // Its end would cut the group, and the peers' failures might be known before this one.
    (void)worker.release();
    return report(who, *failure);
}

}  // namespace ddprun
