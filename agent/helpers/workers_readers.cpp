#include "agent/helpers/workers_readers.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <utility>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "base/os/give_to_loop.hpp"
#include "base/os/helper.hpp"
#include "base/os/start_program.hpp"
#include "base/os/unique_fd.hpp"

namespace ddprun::agent {

namespace asio = boost::asio;

/// One who reads. Held until what is pending of it has had its turn.
struct WorkersReaders::Reader : std::enable_shared_from_this<Reader> {
    Reader(asio::io_context& io, std::uint64_t name, const std::function<void(int pid)>& on_child)
        : number(name),
          program(io, {.on_child = on_child, .on_end = [](const auto& /*end*/) {}}),
          output(io) {}

    std::uint64_t number;
    Helper program;
    asio::posix::stream_descriptor output;
    UniqueFd until;    ///< closed: it is to come to its end
    std::string held;  ///< read, and not sent yet
    std::size_t piece_bytes = 0;
    std::array<char, 4096> buffer{};
    bool may_send = true;  ///< the last piece was taken
    bool is_reading = false;
    bool is_at_end = false;
};

namespace {

Result<std::pair<UniqueFd, UniqueFd>> open_pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
        return system_error(errno, "a pipe for ddpctl");
    }
    return std::pair{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

/// The reader's command; launcher/ctl/verbs/node_logs.cpp reads the flags of a node's own reader.
std::vector<std::string> command_of(const rdzv::ReadWorkers& message, std::string ddpctl,
                                    const std::string& run, const std::string& host) {
    std::vector<std::string> command{std::move(ddpctl)};
    if (message.what == rdzv::WorkersText::Stacks) {
        command.insert(command.end(), {"stacks", run});
        if (message.rank) {
            command.insert(command.end(), {"--rank", std::to_string(*message.rank)});
        }
        return command;
    }
    command.insert(command.end(), {"node-logs", "--run", run, "--host", host, "--line-bytes",
                                   std::to_string(message.piece_bytes)});
    if (message.rank) {
        command.insert(command.end(), {"--rank", std::to_string(*message.rank)});
    }
    if (message.generation) {
        command.insert(command.end(), {"--generation", std::to_string(*message.generation)});
    } else if (message.follows) {
        command.emplace_back("--follow");
    }
    if (message.last_lines) {
        command.insert(command.end(), {"--lines", std::to_string(*message.last_lines)});
    }
    if (!message.pattern.empty()) {
        command.push_back("--grep=" + message.pattern);
    }
    return command;
}

}  // namespace

WorkersReaders::WorkersReaders(asio::io_context& io, const Limits& limits, std::string run,
                               std::string host, Events events)
    : io_(io),
      limits_(limits),
      run_(std::move(run)),
      host_(std::move(host)),
      events_(std::move(events)),
      finish_deadline_(io, [this] { cut_off(); }) {}

WorkersReaders::~WorkersReaders() = default;

void WorkersReaders::hear(const rdzv::ReadWorkers& message) {
    remove(message.reader);
    std::string fault;
    if (run_.empty()) {
        fault = "no logs are kept here (--log-dir)";
    } else if (readers_.size() >= limits_.readers_max) {
        fault = fmt::format("{} read here already, the limit", limits_.readers_max);
    } else {
        auto reader = std::make_shared<Reader>(io_, message.reader, events_.on_child);
        if (const Result<void> started = start(*reader, message); started) {
            readers_[message.reader] = reader;
            read_next(*reader);
        } else {
            fault = started.error().what;
        }
    }
    if (!fault.empty()) {
        rdzv::WorkersRead answer{.reader = message.reader, .is_last = true, .error = fault};
        asio::post(io_, [this, answer = std::move(answer)] { events_.answer(answer); });
    }
}

Result<void> WorkersReaders::start(Reader& reader, const rdzv::ReadWorkers& message) {
    Result<std::string> ddpctl = path_beside_us("ddpctl");
    if (!ddpctl) {
        return ddpctl.error();
    }
    Result<std::pair<UniqueFd, UniqueFd>> out = open_pipe();
    Result<std::pair<UniqueFd, UniqueFd>> until = open_pipe();
    if (!out || !until) {
        return out ? until.error() : out.error();
    }
    if (Result<void> given = give_to_loop(reader.output, std::move(out->first)); !given) {
        return given;
    }
    reader.piece_bytes = static_cast<std::size_t>(message.piece_bytes);
    ProgramSpec spec;
    spec.command = command_of(message, *std::move(ddpctl), run_, host_);
    spec.fds = {FdMapping{.from = until->first.get(), .to = STDIN_FILENO},
                FdMapping{.from = out->second.get(), .to = STDOUT_FILENO},
                FdMapping{.from = out->second.get(), .to = STDERR_FILENO}};
    spec.may_be_slow = true;
    reader.until = std::move(until->second);
    return reader.program.start(std::move(spec), std::nullopt);
}

/// Only as much is read as may be sent: the rest waits in the pipe, and its writer with it.
void WorkersReaders::read_next(Reader& reader) {
    if (reader.is_reading || reader.is_at_end || reader.held.size() >= reader.piece_bytes) {
        return;
    }
    reader.is_reading = true;
    const std::size_t room =
        std::min(reader.buffer.size(), reader.piece_bytes - reader.held.size());
    reader.output.async_read_some(asio::buffer(reader.buffer.data(), room),
                                  [this, held = reader.shared_from_this()](
                                      boost::system::error_code failure, std::size_t count) {
                                      if (failure == asio::error::operation_aborted) {
                                          return;
                                      }
                                      held->is_reading = false;
                                      held->held.append(held->buffer.data(), count);
                                      held->is_at_end = static_cast<bool>(failure);
                                      send_piece(*held, held->is_at_end);
                                  });
}

/// Whole lines, if there are any; the last piece has everything.
void WorkersReaders::send_piece(Reader& reader, bool is_last) {
    const std::size_t line_end = reader.held.rfind('\n');
    const bool is_full = reader.held.size() >= reader.piece_bytes;
    const bool has_line = line_end != std::string::npos;
    if (!reader.may_send || (!is_last && !has_line && !is_full)) {
        read_next(reader);
        return;
    }
    rdzv::WorkersRead piece{.reader = reader.number, .is_last = is_last};
    const std::size_t count = is_last || !has_line ? reader.held.size() : line_end + 1;
    piece.bytes = reader.held.substr(0, count);
    reader.held.erase(0, count);
    reader.may_send = false;
    events_.answer(std::move(piece));
    if (is_last) {
        remove(reader.number);
        end_if_none();
    } else {
        read_next(reader);
    }
}

void WorkersReaders::hear(const rdzv::ReadOn& message) {
    const auto found = readers_.find(message.reader);
    if (found == readers_.end()) {
        return;
    }
    if (message.stops) {
        remove(message.reader);
        end_if_none();
        return;
    }
    const std::shared_ptr<Reader> reader = found->second;
    reader->may_send = true;
    if (reader->is_at_end || !reader->held.empty()) {
        send_piece(*reader, reader->is_at_end);
    }
}

void WorkersReaders::remove(std::uint64_t number) {
    const auto found = readers_.find(number);
    if (found == readers_.end()) {
        return;
    }
    const std::shared_ptr<Reader> reader = found->second;
    readers_.erase(found);
    boost::system::error_code ignored;
    reader->output.close(ignored);
    reader->program.cancel();
    // The handlers that it has cancelled run before it is gone.
    asio::post(io_, [reader] {});
}

void WorkersReaders::finish(std::function<void()> done) {
    on_finished_ = std::move(done);
    for (auto& [number, reader] : readers_) {
        reader->until.reset();
    }
    finish_deadline_.set(std::chrono::steady_clock::now() + limits_.read_end_timeout);
    end_if_none();
}

void WorkersReaders::end_if_none() {
    if (readers_.empty() && on_finished_) {
        finish_deadline_.set(std::nullopt);
        std::exchange(on_finished_, nullptr)();
    }
}

void WorkersReaders::cut_off() {
    stop();
    end_if_none();
}

void WorkersReaders::stop() {
    while (!readers_.empty()) {
        remove(readers_.begin()->first);
    }
}

}  // namespace ddprun::agent
