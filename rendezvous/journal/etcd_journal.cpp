#include "rendezvous/journal/etcd_journal.hpp"

#include <chrono>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

namespace ddprun::rdzv {

namespace asio = boost::asio;

namespace {

/// g++ 12 takes a temporary one in a coroutine for uninitialised.
const Result<void> kDone;

/// A slow etcd, or one on a busy machine, takes in a record at least this fast.
constexpr std::size_t kBytesPerMillisecond = 1024;
/// Each is an earlier request of this term that arrived late; there are only so many.
constexpr int kLateRequestsMax = 8;

Error not_leading() {
    return Error{ErrorCode::Refused,
                 "the journal in etcd was not written: this daemon leads no more"};
}

GuardedAnswer guarded_answer(const EtcdGuarded& answer) {
    GuardedAnswer seen;
    seen.is_done = answer.is_done;
    seen.revision = answer.revision;
    if (answer.leader) {
        seen.leader_term = answer.leader->create_revision;
    }
    seen.mod_revision = answer.entry ? answer.entry->mod_revision : 0;
    return seen;
}

}  // namespace

EtcdJournal::EtcdJournal(asio::io_context& io, std::vector<Endpoint> etcds, EtcdKeys keys,
                         const Limits& limits)
    : io_(io), keys_(std::move(keys)), limits_(limits), client_(io, std::move(etcds), limits) {}

void EtcdJournal::begin_term(EtcdTerm term) {
    writes_.emplace(term.revision, std::move(term.mod_revisions));
    history_.emplace(limits_.etcd_history_bytes_max);
    compact_to_ = 0;
    term_ = std::move(term);
    ++term_number_;
}

void EtcdJournal::end_term() {
    client_.cancel();
    term_.reset();
    ++term_number_;
    std::map<JobId, Change> changes;
    changes.swap(changes_);
    for (auto& [job, change] : changes) {
        for (Written& written : change.answers) {
            answer_later(not_leading(), std::move(written));
        }
    }
}

void EtcdJournal::close() {
    is_closed_ = true;
    end_term();
}

void EtcdJournal::write(const JobId& job, std::string record, Written written) {
    if (!term_) {
        answer_later(not_leading(), std::move(written));
        return;
    }
    if (record.size() > limits_.record_bytes_max) {
        answer_later(
            Error{ErrorCode::LimitExceeded,
                  fmt::format("the record of run {} has {} bytes, more than the limit of {}",
                              job.value(), record.size(), limits_.record_bytes_max)},
            std::move(written));
        return;
    }
    const auto found = changes_.find(job);
    if (found == changes_.end() ? changes_.size() >= limits_.jobs_max
                                : found->second.answers.size() >= limits_.journal_answers_max) {
        answer_later(Error{ErrorCode::LimitExceeded,
                           "etcd does not keep up: too many writes of the journal wait for it"},
                     std::move(written));
        return;
    }
    Change& change = changes_[job];
    change.record = std::move(record);
    change.answers.push_back(std::move(written));
    start_work();
}

void EtcdJournal::erase(const JobId& job) {
    if (term_) {
        changes_[job].record.reset();
        start_work();
    }
}

void EtcdJournal::start_work() {
    if (!is_working_) {
        is_working_ = true;
        asio::co_spawn(io_, work(), asio::detached);
    }
}

asio::awaitable<void> EtcdJournal::work() {
    // Nothing may be called back from inside write().
    co_await asio::post(io_, asio::use_awaitable);
    while (!changes_.empty()) {
        auto next = changes_.upper_bound(last_job_);
        if (next == changes_.end()) {
            next = changes_.begin();
        }
        const JobId job = next->first;
        Change change = std::move(next->second);
        changes_.erase(next);
        last_job_ = job;
        const Result<void> done = co_await carry_out(job, std::move(change.record));
        answer(change.answers, done);
        co_await forget_history();
    }
    is_working_ = false;
}

/// Best effort: if it fails, etcd keeps more, and is asked again after as much more was written.
asio::awaitable<void> EtcdJournal::forget_history() {
    const std::uint64_t revision = std::exchange(compact_to_, 0);
    if (revision == 0 || !term_) {
        co_return;
    }
    EtcdRequest request = compaction_request(revision);
    const Instant until = term_->leads_until();
    const Milliseconds each = limits_.etcd_timeout / 2;
    const Result<std::string> done = co_await client_.call(std::move(request), each, until);
    static_cast<void>(done);
}

asio::awaitable<Result<void>> EtcdJournal::carry_out(JobId job, std::optional<std::string> record) {
    const std::string key = keys_.runs + job.value();
    const std::size_t bytes = record ? record->size() : 0;
    const std::uint64_t number = term_number_;
    for (int late = 0; late <= kLateRequestsMax && term_; ++late) {
        const EtcdTerm& term = *term_;
        const WriteGuard known = writes_->guard(job);
        const EtcdGuard guard{.leader_key = keys_.leader,
                              .term = known.term.value(),
                              .mod_revision = known.mod_revision};
        EtcdRequest request = guarded_request(guard, key, record);
        const Instant until = term.leads_until();
        // One that hangs must leave time for another within the patience of who waits; the record
        // of a run of thousands of nodes takes a while to be read.
        const Milliseconds each =
            limits_.etcd_timeout / 2 + Milliseconds(bytes / kBytesPerMillisecond);
        const Result<std::string> body = co_await client_.call(std::move(request), each, until);
        if (term_number_ != number) {
            break;
        }
        if (!body) {
            co_return explained(job, bytes, body.error());
        }
        const Result<EtcdGuarded> answer = read_guarded(*body);
        if (!answer) {
            co_return explained(job, bytes, answer.error());
        }
        const WriteOutcome outcome = writes_->answered(job, !record, guarded_answer(*answer));
        if (outcome == WriteOutcome::Done) {
            if (history_->is_full(bytes)) {
                compact_to_ = answer->revision;
            }
            co_return kDone;
        }
        if (outcome == WriteOutcome::Deposed) {
            const std::function<void()> is_deposed = term.is_deposed;
            is_deposed();
            break;
        }
    }
    co_return not_leading();
}

void EtcdJournal::answer(const std::vector<Written>& answers, const Result<void>& result) {
    for (const Written& written : answers) {
        if (is_closed_) {
            return;
        }
        written(result);
    }
}

void EtcdJournal::answer_later(Error problem, Written written) {
    asio::post(io_, [this, problem = std::move(problem), written = std::move(written)] {
        if (!is_closed_) {
            written(problem);
        }
    });
}

Error EtcdJournal::explained(const JobId& job, std::size_t bytes, const Error& problem) const {
    const bool is_too_large = problem.what.find("too large") != std::string::npos ||
                              problem.what.find("larger than max") != std::string::npos;
    const std::string why =
        is_too_large ? fmt::format(
                           "it has {} bytes, more than etcd takes (1.5 MiB unless it is told "
                           "otherwise); start every etcd with --max-request-bytes {}",
                           bytes, 2 * bytes)
                     : problem.what + "; see to etcd";
    return Error{is_too_large ? ErrorCode::LimitExceeded : problem.code,
                 fmt::format("etcd has not taken the record of run {}: {}. Until it does, no other "
                             "daemon could go on with the run",
                             job.value(), why)};
}

}  // namespace ddprun::rdzv
