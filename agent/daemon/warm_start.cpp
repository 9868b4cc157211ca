#include "agent/daemon/warm_start.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>
#include <variant>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "agent/output/terminal.hpp"
#include "base/os/file_identity.hpp"
#include "base/os/give_to_loop.hpp"
#include "base/os/read_memory_room.hpp"
#include "base/os/unix_time.hpp"
#include "base/whole_number.hpp"
#include "worker_runtime/contract/standby.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::agent {

namespace {

/// At once; a name is shorter.
constexpr std::size_t kImportsReadBytes = 4096;

std::vector<std::string> fields_of(std::string_view message) {
    std::vector<std::string> fields;
    while (true) {
        const std::size_t end = message.find('\0');
        fields.emplace_back(message.substr(0, end));
        if (end == std::string_view::npos) {
            return fields;
        }
        message.remove_prefix(end + 1);
    }
}

/// One message, if one has come. Empty: none, or the other end is gone.
std::string receive(int socket, std::size_t bytes_max) {
    std::string text(bytes_max, '\0');
    ssize_t got = 0;
    do {
        got = recv(socket, text.data(), text.size(), MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
}

/// True if it was taken. A socket's buffer has room for all that is ever said to one standby.
bool send_to(int socket, std::string_view text, int out = -1, int err = -1) {
    iovec bytes{const_cast<char*>(text.data()), text.size()};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
    if (out >= 0) {
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(2 * sizeof(int));
        const std::array<int, 2> fds{out, err};
        std::memcpy(CMSG_DATA(header), fds.data(), sizeof fds);
    }
    return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size());
}

bool has_input(const UniqueFd& file) {
    pollfd waited{file.get(), POLLIN, 0};
    return file.is_open() && poll(&waited, 1, 0) == 1 && (waited.revents & POLLIN) != 0;
}

std::string order_of(const PrepareStandby& effect, const std::string& keep_file) {
    std::string order = effect.is_rehearsal ? "rehearse\n" : "";
    if (effect.is_rehearsal && !keep_file.empty()) {
        order += fmt::format("keep {}\n", keep_file);
    }
    for (const std::string& variable : variables_of_generation()) {
        order += fmt::format("placed {}\n", variable);
    }
    for (const std::string& module : effect.modules) {
        const std::string_view how = !effect.is_guess                        ? "import"
                                     : effect.told.contains(name_in(module)) ? "learned"
                                                                             : "guess";
        order += fmt::format("{} {}\n", how, module);
    }
    order.pop_back();
    return order;
}

/// In the order of a worker's own environment.
std::string place_of(const WorkerSpec& worker, const std::string& page) {
    std::map<std::string, std::string> variables(worker.environment.begin(),
                                                 worker.environment.end());
    if (!page.empty()) {
        variables.insert_or_assign(std::string(worker_variable::kPage.key), page);
    }
    std::string text(standby_word::kPlace);
    for (const auto& [key, value] : variables) {
        text += '\0';
        text += fmt::format("{}={}", key, value);
    }
    return text;
}

}  // namespace

WarmStart::WarmStart(boost::asio::io_context& io, const SupervisorOptions& options,
                     WarmOptions warm, Events events)
    : io_(io),
      limits_(options.limits),
      warm_(warm),
      events_(std::move(events)),
      specs_(standbys_of(options)),
      slots_(options.limits, options.identity.slots, std::move(warm)),
      timer_(io, [this] { settle(); }),
      leaving_timer_(io,
                     [this] {
                         for (const auto& [slot, leaving] : leaving_) {
                             events_.on_hung(slot);
                         }
                     }),
      stop_timer_(io, [this] { finish_stop(); }),
      program_look_(io),
      checkpoint_(io, {.say = events_.say, .on_child = events_.on_child}) {
    if (!slots_.is_off()) {
        memory_watch_.emplace(io, options.limits, [this] {
            slots_.memory_is_short();
            settle();
        });
    }
}

void WarmStart::observe(const Input& input, const Effects& effects, bool is_ending) {
    if (const auto* from = std::get_if<FromRendezvous>(&input)) {
        if (std::holds_alternative<rdzv::Waiting>(from->message)) {
            check();  // This node's wait has changed: it may start soon.
        }
    } else if (const auto* emptied = std::get_if<Emptied>(&input)) {
        if (emptied->generation != kPrepareGeneration) {
            begin();
        }
    } else if (std::holds_alternative<KeeperLost>(input)) {
        leaving_.clear();
        leaving_timer_.set(std::nullopt);
    }
    for (const Effect& effect : effects) {
        observe(effect, is_ending);
    }
}

void WarmStart::observe(const Effect& effect, bool is_ending) {
    if (const auto* start = std::get_if<StartWorkers>(&effect)) {
        base_rank_ = start->base_rank;
        world_size_ = start->world_size;
        check();
    }
    const auto* signal = std::get_if<SignalWorkers>(&effect);
    if ((signal != nullptr && signal->generation != kPrepareGeneration) ||
        std::holds_alternative<EmptyGeneration>(effect)) {
        pause();
    }
    if (read_ahead_.of(effect, is_ending)) {
        checkpoint_.read_soon(events_.checkpoints());
    }
}

void WarmStart::begin() {
    slots_.begin(clock_now());
    settle();
}

void WarmStart::pause() {
    slots_.pause();
    timer_.set(slots_.next_deadline());
    check();
}

/// Waiting standbys check that the modules which they have imported are unchanged on the disk, so
/// that this takes no time once they have their places.
void WarmStart::check() {
    for (auto& [slot, standby] : standbys_) {
        if (slots_.is_waiting(slot)) {
            (void)send_to(standby.socket.native_handle(),
                          standby_word::kCheck);  // Else it looks then.
        }
    }
}

/// All workers of a program that waits by itself do, so that one of them reports it.
UniqueFd WarmStart::imports_pipe(LocalRank local_rank) {
    std::array<int, 2> ends{};
    if ((!warm_.program.empty() && local_rank != LocalRank(0)) || !slots_.learns() ||
        pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
        return {};
    }
    UniqueFd ours(ends[0]);
    UniqueFd theirs(ends[1]);
    boost::asio::posix::stream_descriptor pipe(io_);
    if (!give_to_loop(pipe, std::move(ours))) {
        return {};
    }
    imports_.erase(local_rank);
    imports_.emplace(local_rank, ToldImports{std::move(pipe), {}});
    hear_imports(local_rank);
    return theirs;
}

/// The keeper holds the other end for as long as its generation lives.
void WarmStart::hear_imports(LocalRank local_rank) {
    boost::asio::posix::stream_descriptor& pipe = imports_.at(local_rank).pipe;
    pipe.async_wait(boost::asio::posix::descriptor_base::wait_read,
                    [this, local_rank](const boost::system::error_code& error) {
                        if (error) {
                            return;
                        }
                        std::array<char, kImportsReadBytes> bytes{};
                        const ssize_t got = read(imports_.at(local_rank).pipe.native_handle(),
                                                 bytes.data(), bytes.size());
                        if (got > 0) {
                            learn(local_rank, {bytes.data(), static_cast<std::size_t>(got)});
                        } else if (got == 0 || errno != EAGAIN) {
                            return;
                        }
                        hear_imports(local_rank);
                    });
}

void WarmStart::learn(LocalRank local_rank, std::string_view bytes) {
    std::vector<std::string> lines;
    std::string& unfinished = imports_.at(local_rank).unfinished;
    for (const char c : bytes) {
        if (c == '\n') {
            std::string line = std::exchange(unfinished, {});
            if (line.starts_with(kWaitsLine)) {
                hear_waits(line.substr(kWaitsLine.size()));
            } else {
                lines.push_back(std::move(line));
            }
        } else if (unfinished.size() < kImportsReadBytes) {
            unfinished += c;
        }
    }
    slots_.learn(clock_now(), local_rank, lines);
    settle();
}

/// A script that has started the program is another file, and must not be started as a standby: it
/// would do what it does without a place.
void WarmStart::hear_waits(const std::string& identity) {
    told_program_ = identity;
    look_at_program();
}

/// Which file a worker's program is now.
void WarmStart::look_at_program() {
    is_look_old_ = program_look_.is_asked();
    if (!is_look_old_) {
        program_look_.ask<std::string>(
            [path = specs_.front().command.front()] { return file_identity(path); },
            [this](const std::optional<std::string>& identity) {
                if (is_look_old_) {
                    look_at_program();
                } else {
                    take_program(identity.value_or(""));
                }
            });
    }
}

void WarmStart::take_program(const std::string& identity) {
    if (!told_program_.empty() && std::exchange(told_program_, {}) == identity) {
        waiting_program_ = identity;
        slots_.can_wait(clock_now());
    }
    for (const auto& [slot, effect] : std::exchange(unchecked_, {})) {
        if (identity == waiting_program_) {
            prepare(effect);
        } else {
            slots_.is_another_program(slot);
        }
    }
    settle();
}

void WarmStart::settle() {
    const std::vector<WorkerMoments> moments = events_.moments();
    NodeSeen node;
    if (warm_.needs_room) {
        node.room = read_memory_room();
    }
    node.is_first_step_awaited =
        std::any_of(moments.begin(), moments.end(),
                    [](const WorkerMoments& worker) { return worker.main && !worker.first_step; });
    for (const StandbyEffect& effect : slots_.settle(clock_now(), node)) {
        std::visit([this](const auto& one) { carry_out(one); }, effect);
    }
    timer_.set(slots_.next_deadline());
}

void WarmStart::carry_out(const TryStandby& /*effect*/) {
    start(LocalRank(0), warm_.trial, {});
}

void WarmStart::carry_out(const PrepareStandby& effect) {
    if (warm_.program.empty()) {
        prepare(effect);
    } else {
        unchecked_.insert_or_assign(effect.slot, effect);
        look_at_program();
    }
}

void WarmStart::prepare(const PrepareStandby& effect) {
    const auto slot = static_cast<std::size_t>(effect.slot.value());
    start(effect.slot, specs_.at(slot).command, order_of(effect, warm_.keep_file));
}

void WarmStart::carry_out(const DiscardStandby& effect) {
    if (unchecked_.erase(effect.slot) > 0) {
        boost::asio::post(io_, [this, slot = effect.slot] { has_ended(slot); });
    } else {
        kill(effect.slot);
    }
}

void WarmStart::kill(LocalRank slot) {
    keeper_->signal_workers(kStandbyGeneration, {slot}, SIGKILL);
}

void WarmStart::start(LocalRank slot, const std::vector<std::string>& command, std::string order) {
    if (!keeper_) {
        Result<std::unique_ptr<KeeperHandle>> keeper = events_.start_keeper();
        if (!keeper) {
            boost::asio::post(io_, [this, why = keeper.error().what] {
                slots_.cannot_be_started(why);
                settle();
            });
            return;
        }
        keeper_ = *std::move(keeper);
    }
    if (!start_in_keeper(slot, command, std::move(order))) {
        boost::asio::post(io_, [this, slot] { has_ended(slot); });
    }
}

bool WarmStart::start_in_keeper(LocalRank slot, const std::vector<std::string>& command,
                                std::string order) {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
        return false;
    }
    UniqueFd ours(ends[0]);
    UniqueFd theirs(ends[1]);
    boost::asio::posix::stream_descriptor socket(io_);
    Result<StandIn> stand_in =
        events_.open_stand_in(slot, Rank(base_rank_.value() + slot.value()), world_size_);
    if (!stand_in || !give_to_loop(socket, std::move(ours))) {
        return false;
    }
    OutputPipes pipes = std::move(stand_in->workers);
    const bool is_out_terminal = is_terminal(pipes.out.get());
    const bool is_err_terminal = is_terminal(pipes.err.get());
    standbys_.erase(slot);
    const auto [entry, is_new] = standbys_.emplace(slot, Standby{.number = ++last_number_,
                                                                 .socket = std::move(socket),
                                                                 .stand_in = *std::move(stand_in),
                                                                 .is_out_terminal = is_out_terminal,
                                                                 .is_err_terminal = is_err_terminal,
                                                                 .order = std::move(order)});
    listen(slot, entry->second);
    const WorkerSpec& spec = specs_.at(static_cast<std::size_t>(slot.value()));
    keeper_->start_standby(slot, command, spec.environment, std::move(pipes.out),
                           std::move(pipes.err), spec.cpus, WorkerStdin::Inherited,
                           std::move(theirs));
    return true;
}

void WarmStart::listen(LocalRank slot, Standby& standby) {
    standby.socket.async_wait(
        boost::asio::posix::descriptor_base::wait_read,
        [this, slot, number = standby.number](const boost::system::error_code& error) {
            if (error) {
                return;
            }
            const auto found = standbys_.find(slot);
            if (found != standbys_.end() && found->second.number == number) {
                read_standby(slot);
            }
            const auto leaving = leaving_.find(slot);
            if (leaving != leaving_.end() && leaving->second.standby.number == number) {
                read_leaving(slot);
            }
        });
}

/// An end of the connection is no news: the keeper reports the standby's end.
void WarmStart::read_standby(LocalRank slot) {
    Standby& standby = standbys_.at(slot);
    const std::string message =
        receive(standby.socket.native_handle(), limits_.standby_message_bytes_max);
    if (message.empty()) {
        return;
    }
    hear(slot, message);
    const auto still = standbys_.find(slot);
    if (still != standbys_.end() && still->second.socket.is_open()) {
        listen(slot, still->second);
    }
    settle();
}

void WarmStart::hear(LocalRank slot, std::string_view message) {
    Standby& standby = standbys_.at(slot);
    const std::vector<std::string> fields = fields_of(message);
    if (fields[0] == standby_word::kHere) {
        slots_.is_here(slot);
        if (standby.order.empty()) {
            standby.socket.close();  // The trial has shown that it runs, and may go.
        } else if (!send_to(standby.socket.native_handle(), standby.order)) {
            kill(slot);
        }
    } else if (fields[0] == standby_word::kImports && fields.size() == 2) {
        judge_written(slot, standby);
        standby.importing = fields[1];
    } else if (fields[0] == standby_word::kUnfit && fields.size() == 3) {
        slots_.is_unfit(slot, fields[1], fields[2]);
    } else if (fields[0] == standby_word::kDrops && fields.size() == 2) {
        slots_.cannot_import(slot, fields[1]);
    } else if (fields[0] == standby_word::kReady || fields[0] == standby_word::kFit) {
        judge_written(slot, standby);
        constexpr std::uint64_t kKibibyte = 1024;
        const std::uint64_t memory =
            fields.size() == 2 ? whole_number<std::uint64_t>(fields[1]).value_or(0) * kKibibyte : 0;
        if (fields[0] == standby_word::kFit) {
            slots_.is_fit(slot, memory);
        } else {
            slots_.is_ready(slot, memory);
        }
    }
}

/// A standby must not write: its output would be lost, and a cold worker writes it each time.
void WarmStart::judge_written(LocalRank slot, const Standby& standby) {
    for (const auto& [file, name] :
         {std::pair{&standby.stand_in.out, "stdout"}, std::pair{&standby.stand_in.err, "stderr"}}) {
        if (!standby.importing.empty() && has_input(*file)) {
            slots_.is_unfit(slot, standby.importing, fmt::format("it writes to {}", name));
            kill(slot);
            return;
        }
    }
}

void WarmStart::has_ended(LocalRank slot) {
    const auto found = standbys_.find(slot);
    if (found != standbys_.end() && found->second.socket.is_open()) {
        // Its last words may not have been read.
        std::string message;
        while (!(message = receive(found->second.socket.native_handle(),
                                   limits_.standby_message_bytes_max))
                    .empty()) {
            hear(slot, message);
        }
    }
    standbys_.erase(slot);
    slots_.has_ended(slot);
    settle();
}

void WarmStart::are_lost() {
    standbys_.clear();
    unchecked_.clear();
    slots_.are_lost();
    settle();
}

void WarmStart::cannot_be_emptied(const std::string& rest) {
    // No worker of a generation: it is nothing that anybody waits for.
    events_.say(fmt::format("--warm: {}: it was a standby", rest));
    are_lost();
    pause();
}

std::set<LocalRank> WarmStart::take(const std::vector<WorkerSpec>& workers,
                                    std::unique_ptr<KeeperHandle>& keeper) {
    checkpoint_.read_now();
    std::string cold;
    for (const WorkerSpec& worker : workers) {
        const std::string why = slots_.why_not(worker.local_rank, clock_now());
        const auto found = standbys_.find(worker.local_rank);
        const bool is_ready = slots_.is_waiting(worker.local_rank);
        if (!is_ready && !why.empty()) {
            cold += fmt::format("{}local rank {} ({})", cold.empty() ? "" : ", ",
                                worker.local_rank.value(), why);
        } else if (is_ready &&
                   (found == standbys_.end() ||
                    !can_become(specs_.at(static_cast<std::size_t>(worker.local_rank.value())),
                                worker))) {
            cold +=
                fmt::format("{}local rank {} (its standby was prepared for another environment)",
                            cold.empty() ? "" : ", ", worker.local_rank.value());
        }
    }
    if (std::exchange(has_started_, true) && !cold.empty()) {
        events_.say(fmt::format("--warm: these start cold: {}", cold));
    }
    const std::vector<LocalRank> ready = slots_.take();
    std::set<LocalRank> taken;
    for (const LocalRank slot : ready) {
        const auto index = static_cast<std::size_t>(slot.value());
        if (standbys_.contains(slot) && can_become(specs_.at(index), workers.at(index))) {
            taken.insert(slot);
        }
    }
    if (ready.empty()) {
        begin();
        return taken;
    }
    unchecked_.clear();
    std::map<LocalRank, Standby> before = std::exchange(standbys_, {});
    for (auto& [slot, standby] : before) {
        if (taken.contains(slot)) {
            leaving_.emplace(slot, Leaving{.standby = std::move(standby), .pid = 0});
        } else if (!taken.empty()) {
            kill(slot);
        }
    }
    if (taken.empty()) {
        keeper_->empty_generation(kStandbyGeneration);
    } else {
        std::swap(keeper, keeper_);
    }
    begin();
    return taken;
}

void WarmStart::leave(const WorkerSpec& worker, OutputPipes pipes) {
    Leaving& leaving = leaving_.at(worker.local_rank);
    leaving.worker = worker;
    leaving.pipes = std::move(pipes);
}

void WarmStart::tell_place(LocalRank local_rank, int pid, const std::string& page) {
    const auto found = leaving_.find(local_rank);
    if (found == leaving_.end()) {
        return;
    }
    Leaving& leaving = found->second;
    leaving.pid = pid;
    const std::string place = place_of(leaving.worker, page);
    const OutputPipes& pipes = leaving.pipes;
    if (place.size() > limits_.standby_message_bytes_max ||
        is_terminal(pipes.out.get()) != leaving.standby.is_out_terminal ||
        is_terminal(pipes.err.get()) != leaving.standby.is_err_terminal ||
        !send_to(leaving.standby.socket.native_handle(), place, pipes.out.get(), pipes.err.get())) {
        events_.on_hung(local_rank);
        return;
    }
    listen(local_rank, leaving.standby);
    leaving_timer_.set(clock_now() + limits_.standby_go_timeout);
}

void WarmStart::read_leaving(LocalRank slot) {
    Leaving& leaving = leaving_.at(slot);
    const std::string message =
        receive(leaving.standby.socket.native_handle(), limits_.standby_message_bytes_max);
    const std::vector<std::string> fields = fields_of(message);
    if (fields[0] == standby_word::kGone) {
        const int pid = leaving.pid;
        leaving_.erase(slot);
        if (leaving_.empty()) {
            leaving_timer_.set(std::nullopt);
        }
        events_.on_gone(slot, pid);
    } else if (fields[0] == standby_word::kUnfit && fields.size() == 3) {
        events_.say(fmt::format("--warm: local rank {} starts cold: {} {}", slot.value(), fields[1],
                                fields[2]));
    }
}

std::optional<OutputPipes> WarmStart::take_back(LocalRank local_rank) {
    if (leaving_.contains(local_rank)) {
        read_leaving(local_rank);
    }
    const auto found = leaving_.find(local_rank);
    if (found == leaving_.end()) {
        return std::nullopt;
    }
    OutputPipes pipes = std::move(found->second.pipes);
    leaving_.erase(found);
    return pipes;
}

void WarmStart::exclude(int pid) {
    if (keeper_) {
        keeper_->exclude(pid);
    }
}

void WarmStart::stop(std::function<void()> done) {
    checkpoint_.cancel();
    if (!keeper_) {
        done();
        return;
    }
    on_stopped_ = std::move(done);
    stop_timer_.set(clock_now() + limits_.unkillable_after);
    keeper_->stop([this] { finish_stop(); });
}

void WarmStart::finish_stop() {
    stop_timer_.set(std::nullopt);
    if (const std::function<void()> done = std::exchange(on_stopped_, {})) {
        done();
    }
}

}  // namespace ddprun::agent
