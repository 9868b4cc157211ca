#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include "base/instant.hpp"
#include "rendezvous/etcd/etcd_client.hpp"
#include "rendezvous/host/term_writes.hpp"
#include "rendezvous/journal/etcd_records.hpp"
#include "rendezvous/journal/journal.hpp"

namespace ddprun::rdzv {

/// Facts that a leader may rely on while it writes.
struct EtcdTerm {
    std::uint64_t revision = 0;                    ///< create_revision of the leader's key
    std::map<JobId, std::uint64_t> mod_revisions;  ///< of the runs that have a record
    std::function<Instant()> leads_until;
    /// Etcd says that another daemon leads by now, or that none leads.
    std::function<void()> is_deposed;
};

/// The records of all runs in etcd, one key each, written one after the other. It compacts
/// etcd's history of earlier records now and then. Outside a term everything fails at once. One
/// thread. Outlives the loop.
class EtcdJournal final : public Journal {
public:
    EtcdJournal(boost::asio::io_context& io, std::vector<Endpoint> etcds, EtcdKeys keys,
                const Limits& limits);

    void begin_term(EtcdTerm term);
    /// Waiting writes fail.
    void end_term();
    /// Nothing is called back any more.
    void close();

    void write(const JobId& job, std::string record, Written written) override;
    void erase(const JobId& job) override;

private:
    struct Change {
        std::optional<std::string> record;
        std::vector<Written> answers;
    };

    boost::asio::awaitable<void> work();
    boost::asio::awaitable<Result<void>> carry_out(JobId job, std::optional<std::string> record);
    boost::asio::awaitable<void> forget_history();
    void start_work();
    void answer(const std::vector<Written>& answers, const Result<void>& result);
    void answer_later(Error problem, Written written);
    [[nodiscard]] Error explained(const JobId& job, std::size_t bytes, const Error& problem) const;

    boost::asio::io_context& io_;
    const EtcdKeys keys_;
    const Limits limits_;
    EtcdClient client_;
    std::optional<EtcdTerm> term_;
    std::optional<TermWrites> writes_;    ///< of that term
    std::optional<EtcdHistory> history_;  ///< that this term has made
    std::uint64_t compact_to_ = 0;        ///< this revision; 0: nothing is to be forgotten
    std::uint64_t term_number_ = 0;       ///< tells terms apart, also those of one revision
    std::map<JobId, Change> changes_;     ///< at most jobs_max
    JobId last_job_;                      ///< the next one in order has its turn
    bool is_working_ = false;
    bool is_closed_ = false;
};

}  // namespace ddprun::rdzv
