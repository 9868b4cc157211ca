// The connection to the rendezvous, the socket of the workers' store, joining, and what is said
// again after each join because messages are lost while the link is down.

#include <utility>

#include <fmt/format.h>

#include "agent/supervise/supervisor.hpp"
#include "base/check.hpp"
#include "base/planted_bug.hpp"
#include "base/probe.hpp"
#include "rendezvous/wire/node_sizes.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::agent {

bool Supervisor::is_link_up() const {
    return !std::holds_alternative<LinkIsDown>(link_);
}

/// Over this link; the answer may not have come.
bool Supervisor::has_joined() const {
    return std::holds_alternative<JoinIsSent>(link_) || is_accepted();
}

bool Supervisor::is_accepted() const {
    return std::holds_alternative<LinkIsAccepted>(link_);
}

void Supervisor::tell(rdzv::AgentMessage message) {
    if (is_accepted()) {
        emit(SendToRendezvous{std::move(message)});
    }
}

void Supervisor::take(const LinkUp& input) {
    link_ = LinkIsUp{};
    local_address_ = input.local_address;
    rendezvous_ = {input.rendezvous.host, input.rendezvous.port};
    choose_interface(input);
    if (ending_.has_value()) {
        tell_unfit();
        return;
    }
    if (store_ == StoreState::None && preparation_ == Preparation::None) {
        check_fitness();
    }
    join_if_possible();
}

/// The workers that run keep theirs; the next ones may get another.
void Supervisor::choose_interface(const LinkUp& input) {
    if (!options_.interface || !options_.interface->follows_link) {
        return;
    }
    options_.interface->name = input.interface;
    std::string text =
        input.interface.empty()
            ? fmt::format(
                  "warning: --ifname auto: no interface of this machine has {}, its address"
                  " on the way to the rendezvous; NCCL and Gloo choose by themselves",
                  input.local_address)
            : fmt::format("--ifname auto: workers use {}, which has {}", input.interface,
                          input.local_address);
    if (std::exchange(said_of_interface_, text) != text) {
        say(std::move(text));
    }
}

void Supervisor::take(const LinkDown& input) {
    if (!unheard_since_.has_value()) {
        unheard_since_ = now_;
    }
    if (LinkIsDown* down = std::get_if<LinkIsDown>(&link_)) {
        down->why = input.why;
    } else {
        link_ = LinkIsDown{.why = input.why};
    }
    lease_.end();
    rendezvous_wait_ = {};
    owed_ = Generation();
    if (ending_.has_value()) {
        if (is_telling_unfit() && input.is_final) {
            finish();
        }
        return;
    }
    if (input.is_final) {
        end_saying(input.why, {.reason = ExitReason::Unusable, .exit_code = kExitUsage});
    } else if (is_leaving()) {
        leave_alone();
    }
}

void Supervisor::take(const FromRendezvous& input) {
    if (is_telling_unfit() && std::holds_alternative<rdzv::Refused>(input.message)) {
        DDP_PROBE(unfit_was_heard);
        finish();
        return;
    }
    if (ending_.has_value() || !is_link_up()) {
        return;
    }
    std::visit([this](const auto& message) { hear(message); }, input.message);
}

/// No process of an earlier generation is left; the next one needs free GPUs, a fit node and a
/// socket.
void Supervisor::prepare_next() {
    if (options_.awaits_gpu_memory) {
        preparation_ = Preparation::GpuMemory;
        emit(AwaitGpuMemory{});
    } else {
        check_fitness();
    }
}

void Supervisor::take(const GpuMemoryAwaited& /*input*/) {
    DDP_CHECK(preparation_ == Preparation::GpuMemory);
    preparation_ = Preparation::None;
    if (!ending_.has_value()) {
        check_fitness();
    }
}

void Supervisor::check_fitness() {
    if (options_.has_preflight_command) {
        preparation_ = Preparation::Preflight;
        emit(RunPreflight{});
    } else {
        make_ready();
    }
}

void Supervisor::take(const PreflightDone& input) {
    DDP_CHECK(preparation_ == Preparation::Preflight);
    preparation_ = Preparation::None;
    if (ending_.has_value()) {
        return;
    }
    if (!input.why.empty()) {
        DDP_PROBE(preflight_failed);
        say(fmt::format("the preflight command {}: this node is not fit and leaves the job",
                        input.why));
        end_unfit(fmt::format("its preflight command {}", input.why));
    } else {
        make_ready();
    }
}

/// A node that has not joined sends Unfit: its Goodbye would belong to no member.
void Supervisor::end_unfit(const std::string& why) {
    Ending ending{
        .reason = ExitReason::Unusable, .exit_code = kExitUnfit, .unfit = why, .why = why};
    if (has_joined()) {
        end_after_stop(std::move(ending));
        return;
    }
    ending.tells_until = now_ + options_.limits.connect_timeout;
    ending_ = std::move(ending);
    tell_unfit();
}

void Supervisor::tell_unfit() {
    if (!is_telling_unfit() || !is_link_up()) {
        return;
    }
    const rdzv::Join& identity = options_.identity;
    emit(SendToRendezvous{rdzv::Unfit{.job = identity.job,
                                      .node = identity.node,
                                      .process = identity.process,
                                      .hostname = identity.hostname,
                                      .run_token = run_token_,
                                      .why = ending_->unfit}});
}

void Supervisor::make_ready() {
    if (store_ == StoreState::None) {
        open_store();
    } else {
        say_ready();
    }
}

void Supervisor::open_store() {
    store_ = StoreState::Opening;
    const std::string& host = options_.store_host.empty() ? local_address_ : options_.store_host;
    if (options_.is_store_at_rendezvous) {
        take(StoreOpened{{host, 0}});  // Nothing listens here; the host admits the clients.
        return;
    }
    emit(OpenStore{host});
}

void Supervisor::take(const StoreOpened& input) {
    DDP_CHECK(store_ == StoreState::Opening, input.address.port);
    store_ = StoreState::Listening;
    store_address_ = input.address;
    if (!ending_.has_value()) {
        say_ready();
    }
}

void Supervisor::say_ready() {
    if (std::holds_alternative<LinkIsUp>(link_)) {
        join_if_possible();
    } else {
        report_stopped();
    }
}

void Supervisor::take(const StoreFailed& input) {
    if (ending_.has_value()) {
        return;
    }
    end_saying(fmt::format("cannot open a socket for the workers' store: {}", input.why),
               {.reason = ExitReason::Unusable, .exit_code = kExitUsage});
}

void Supervisor::join_if_possible() {
    // A node with workers joins without a fresh socket: the next one comes with its Stopped.
    if (!std::holds_alternative<LinkIsUp>(link_) ||
        ((store_ != StoreState::Listening || preparation_ != Preparation::None) &&
         !holds_workers())) {
        return;
    }
    rdzv::Join join = options_.identity;
    join.store = store_address_;
    // The workers held may be of an earlier run than the one that accepted us last.
    join.run_token = holds_workers() ? group_token_ : run_token_;
    join.newest = highest_heard_;
    join.tells_progress = true;
    join.shows_workers = true;
    if (prepare_ == PrepareState::Done || holds_workers()) {
        join.prepares = rdzv::Prepares::Nobody;
    } else if (holds_prepare() && join.prepares == rdzv::Prepares::Job) {
        join.prepares = rdzv::Prepares::JobHere;
    }
    if (holds_workers()) {
        const rdzv::Start& row = group_->row();
        join.held = rdzv::HeldGeneration{.generation = row.generation,
                                         .digest = row.digest,
                                         .group_rank = row.group_rank,
                                         .group_world_size = row.group_world_size,
                                         .base_rank = row.base_rank,
                                         .world_size = row.world_size,
                                         .restart_count = row.restart_count,
                                         .node_losses = row.node_losses,
                                         .store = row.store};
    }
    link_ = JoinIsSent{.at = now_, .is_to_prepare = join.prepares != rdzv::Prepares::Nobody};
    emit(SendToRendezvous{std::move(join)});
}

void Supervisor::hear(const rdzv::Accepted& message) {
    const JoinIsSent* sent = std::get_if<JoinIsSent>(&link_);
    if (sent == nullptr) {
        trace("an answer to no join is ignored");
        return;
    }
    const Instant join_sent_at = sent->at;
    const bool has_prepared_since = sent->is_to_prepare && prepare_ == PrepareState::Done;
    LinkIsAccepted& accepted = link_.emplace<LinkIsAccepted>();
    unheard_since_.reset();
    say_connected();
    const rdzv::JobSettings& settings = options_.identity.settings;
    if (rdzv::has_sizes(settings) && !message.keeps_sizes) {
        end_for_old_rendezvous(
            fmt::format("--nnodes {}", rdzv::nnodes_of(settings)),
            fmt::format("--nnodes {}:{}", settings.min_nodes, settings.max_nodes));
        return;
    }
    if (settings.same == rdzv::Sameness::Strict && !message.compares_nodes) {
        end_for_old_rendezvous("--same strict", "--same warn");
        return;
    }
    if (settings.memory_replicas > 0 && !message.names_partners) {
        end_for_old_rendezvous(fmt::format("--memory-replicas {}", settings.memory_replicas),
                               "--memory-replicas 0");
        return;
    }
    is_daemon_lasting_ = message.is_lasting;
    accepted.beat_interval = message.beat_interval;
    if (accepted.beat_interval > Milliseconds::zero()) {
        // At once: the lease runs since our join arrived, and its answer may have been slow.
        accepted.beat_at = now_;
        accepted.heard_at = now_;
    }
    // A node that holds workers may have been replaced while it was away. It is told so before its
    // first beat is answered, not before its join is.
    lease_.begin(message.lease,
                 holds_workers() ? std::nullopt : std::optional<Instant>(join_sent_at));
    if (message.run_token != run_token_) {
        DDP_PROBE(accepted_by_another_run);
        // Another run of the job: its generations count from 1 again.
        run_token_ = message.run_token;
        fenced_ = Generation();
    }
    say_again();
    if (has_prepared_since && !is_leaving() && !ending_.has_value()) {
        tell_prepared();
    }
}

void Supervisor::say_again() {
    if (group_.has_value() && group_token_ == run_token_) {
        for (std::size_t i = 0; i < group_->fates.size(); ++i) {
            const LocalRank local_rank(static_cast<int>(i));
            if (std::holds_alternative<Finished>(group_->fates[i]) && holds_workers()) {
                tell(rdzv::WorkerFinished{.generation = group_->generation(),
                                          .local_rank = local_rank});
            } else {
                report_again(local_rank);
            }
        }
    }
    if (DDP_RULE(quiet_.is_quiet() && group_token_ == run_token_, QuietForgottenOnReconnect,
                 false)) {
        DDP_PROBE(quiet_told_again);
        tell_quiet();
    }
    if (DDP_RULE(is_leaving(), LeaveForgottenOnReconnect, false)) {
        DDP_PROBE(leave_told_again);
        tell_leave();
    }
    if (!holds_workers()) {
        owed_ = newest_known();
    }
    report_stopped();
}

void Supervisor::hear(const rdzv::Waiting& message) {
    const bool has_end = message.over_in > Milliseconds::zero();
    rendezvous_wait_ = {.text = message.text,
                        .since = now_ - message.waited,
                        .limit = message.limit,
                        .over_at = has_end ? std::optional(now_ + message.over_in) : std::nullopt};
}

void Supervisor::hear(const rdzv::Notice& message) {
    say(message.text);
}

void Supervisor::hear(const rdzv::Acknowledge& message) {
    lease_.acknowledged(message.sequence);
    LinkIsAccepted* accepted = std::get_if<LinkIsAccepted>(&link_);
    if (accepted != nullptr && accepted->heard_at.has_value()) {
        accepted->heard_at = now_;
    }
}

std::optional<Instant> Supervisor::silence_end() const {
    const LinkIsAccepted* accepted = std::get_if<LinkIsAccepted>(&link_);
    if (accepted == nullptr || !accepted->heard_at.has_value()) {
        return std::nullopt;
    }
    return *accepted->heard_at + options_.limits.link_silence_max;
}

// A daemon that was stopped, or whose machine is cut off, keeps its connections; another one may
// decide by now.
void Supervisor::judge_silence() {
    const std::optional<Instant> end = silence_end();
    if (!end.has_value() || now_ < *end) {
        return;
    }
    DDP_PROBE(rendezvous_fell_silent);
    std::get<LinkIsAccepted>(link_).heard_at.reset();
    emit(DropLink{fmt::format("the rendezvous has not answered for {} ms",
                              options_.limits.link_silence_max.count())});
}

void Supervisor::send_due_beat() {
    LinkIsAccepted* accepted = std::get_if<LinkIsAccepted>(&link_);
    if (accepted == nullptr || !accepted->beat_at.has_value() || now_ < *accepted->beat_at) {
        return;
    }
    ++beats_;
    tell(rdzv::Beat{beats_});
    lease_.beat_sent(beats_, now_);
    accepted->beat_at = now_ + accepted->beat_interval;
}

// ---------------------------------------------------------------------------------- publishing

void Supervisor::supersede_group() {
    group_->is_superseded = true;
    update_publishing();
}

Instant Supervisor::publish_until() const {
    const bool is_replaced = group_->is_superseded || group_token_ != run_token_;
    return DDP_RULE(is_replaced ? Instant::min() : lease_.held_until(), IsolationMissing,
                    Instant::max());
}

void Supervisor::update_publishing() {
    if (!holds_workers()) {
        return;
    }
    const Instant until = publish_until();
    if (until != group_->publish_until) {
        group_->publish_until = until;
        emit(AllowPublishing{.generation = group_->generation(), .until = until});
    }
}

Milliseconds Supervisor::lost_timeout() const {
    return is_daemon_lasting_ ? options_.lasting_rendezvous_lost_timeout
                              : options_.rendezvous_lost_timeout;
}

std::optional<Instant> Supervisor::give_up_at() const {
    if (is_accepted() || ending_.has_value() || !first_step_.has_value()) {
        return std::nullopt;
    }
    if (run_token_.empty()) {
        return *first_step_ + options_.connect_timeout;
    }
    return unheard_since_.value_or(*first_step_) + lost_timeout();
}

}  // namespace ddprun::agent
