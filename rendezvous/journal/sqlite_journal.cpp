#include "rendezvous/journal/sqlite_journal.hpp"

#include <pthread.h>
#include <signal.h>

#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/error_code.hpp>
#include <fmt/format.h>

#include "base/check.hpp"
#include "base/os/signals_blocked.hpp"
#include "rendezvous/journal/journal_folder.hpp"
#include "rendezvous/journal/run_database.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;

namespace {

using WorkGuard = asio::executor_work_guard<asio::io_context::executor_type>;
using Answers = std::vector<Journal::Written>;

/// On the owner's thread: ends with the journal, while answers may still be on their way.
struct Life {
    std::size_t unanswered = 0;
    std::optional<WorkGuard> work;  ///< while anything is unanswered
    bool is_over = false;
};

/// The owner's thread leaves changes, the journal's thread takes all that wait at once.
class SqliteJournal final : public Journal {
public:
    SqliteJournal(asio::io_context& owner, const Limits& limits, JournalFolder folder,
                  std::unique_ptr<RunDatabase> database)
        : owner_(owner),
          limits_(limits),
          folder_(std::move(folder)),
          database_(std::move(database)),
          settling_(io_),
          work_(io_.get_executor()) {
        settling_.expires_after(limits_.reconnect_grace);
        settling_.async_wait([this](boost::system::error_code cancelled) {
            if (!cancelled) {
                settle();
            }
        });
        const SignalsBlocked blocked;
        thread_ = std::thread([this] { io_.run(); });
        ::pthread_setname_np(thread_.native_handle(), "ddprun-journal");
    }

    ~SqliteJournal() override {
        life_->is_over = true;
        life_->work.reset();
        // Waiting calls have their turn before this.
        asio::post(io_, [this] {
            settle();
            work_.reset();
        });
        thread_.join();
    }

    SqliteJournal(const SqliteJournal&) = delete;
    SqliteJournal& operator=(const SqliteJournal&) = delete;

    void write(const JobId& job, std::string record, Written written) override {
        if (record.size() > limits_.record_bytes_max) {
            refuse(fmt::format("the record of run {} has {} bytes, more than the limit of {}",
                               job.value(), record.size(), limits_.record_bytes_max),
                   std::move(written));
            return;
        }
        bool is_wake_up_needed = false;
        {
            const std::lock_guard lock(mutex_);
            const auto found = changes_.find(job);
            if ((found == changes_.end() && changes_.size() >= limits_.jobs_max) ||
                answers_[job].size() >= limits_.journal_answers_max) {
                refuse(fmt::format("the journal {} does not keep up: too many writes wait for its "
                                   "disk",
                                   folder_.database_path()),
                       std::move(written));
                return;
            }
            is_wake_up_needed = changes_.empty();
            changes_.insert_or_assign(job, std::move(record));
            answers_[job].push_back(std::move(written));
        }
        if (life_->unanswered++ == 0) {
            life_->work.emplace(owner_.get_executor());
        }
        wake_up(is_wake_up_needed);
    }

    void erase(const JobId& job) override {
        bool is_wake_up_needed = false;
        {
            const std::lock_guard lock(mutex_);
            is_wake_up_needed = changes_.empty();
            changes_.insert_or_assign(job, std::nullopt);
        }
        wake_up(is_wake_up_needed);
    }

private:
    void wake_up(bool is_needed) {
        if (is_needed) {
            asio::post(io_, [this] { write_waiting(); });
        }
    }

    void refuse(std::string why, Written written) {
        asio::post(owner_, [life = life_, why = std::move(why), written = std::move(written)] {
            if (!life->is_over) {
                written(Error{ErrorCode::LimitExceeded, why});
            }
        });
    }

    // ------------------------------------------------------------------------ the journal's thread

    void write_waiting() {
        RunChanges changes;
        std::map<JobId, Answers> answers;
        {
            const std::lock_guard lock(mutex_);
            changes.swap(changes_);
            answers.swap(answers_);
        }
        if (changes.empty()) {
            return;
        }
        const Result<void> done = database_->apply(changes);
        if (done) {
            settle();
        }
        asio::post(owner_, [life = life_, done, answers = std::move(answers)] {
            for (const auto& [job, of_job] : answers) {
                for (const Written& written : of_job) {
                    answer(*life, done, written);
                }
            }
        });
    }

    static void answer(Life& life, const Result<void>& done, const Written& written) {
        if (life.is_over) {
            return;
        }
        if (--life.unanswered == 0) {
            life.work.reset();
        }
        written(done);
    }

    void settle() {
        if (!std::exchange(is_settled_, true)) {
            settling_.cancel();
            folder_.note_settled();
        }
    }

    asio::io_context& owner_;
    const Limits limits_;
    const JournalFolder folder_;
    const std::shared_ptr<Life> life_ = std::make_shared<Life>();
    std::mutex mutex_;
    RunChanges changes_;                     ///< guarded by mutex_, at most jobs_max written ones
    std::map<JobId, Answers> answers_;       ///< guarded by mutex_
    std::unique_ptr<RunDatabase> database_;  ///< only the journal's thread touches it
    bool is_settled_ = false;                ///< likewise
    asio::io_context io_{1};
    asio::steady_timer settling_;
    WorkGuard work_;
    std::thread thread_;
};

// ----------------------------------------------------------------------------------------- opening

struct OpenedDatabase {
    std::unique_ptr<RunDatabase> database;
    std::map<JobId, std::string> records;
};

Result<OpenedDatabase> open_and_read(const std::string& path, const Limits& limits) {
    Result<std::unique_ptr<RunDatabase>> database = RunDatabase::open(path);
    if (!database) {
        return database.error();
    }
    Result<std::map<JobId, std::string>> records = (*database)->read(limits);
    if (!records) {
        return records.error();
    }
    return OpenedDatabase{*std::move(database), *std::move(records)};
}

}  // namespace

Result<OpenedJournal> open_sqlite_journal(asio::io_context& io, std::string folder_path,
                                          const Limits& limits) {
    Result<JournalFolder> folder = JournalFolder::open(std::move(folder_path));
    if (!folder) {
        return folder.error();
    }
    const std::string path = folder->database_path();
    std::string why_not;
    int starts = folder->starts_without_settling();
    if (starts >= limits.journal_crashes_max) {
        why_not = fmt::format(
            "the daemon died {} times in a row when it started with the journal {}", starts, path);
        starts = 0;
    }
    folder->note_start(starts + 1);
    Result<OpenedDatabase> opened = Error{ErrorCode::BadMessage, why_not};
    if (why_not.empty()) {
        opened = open_and_read(path, limits);
        if (!opened && opened.error().code == ErrorCode::BadMessage) {
            why_not = opened.error().what;
        }
    }
    OpenedJournal result;
    if (!why_not.empty()) {
        const Result<std::string> aside = folder->set_aside();
        if (!aside) {
            return aside.error();
        }
        result.note = fmt::format(
            "{}; it is kept as {} and a new one is begun: of runs that go on "
            "only what their agents know is known",
            why_not, *aside);
        opened = open_and_read(path, limits);
    }
    if (!opened) {
        return opened.error();
    }
    if (const Result<void> synced = folder->sync(); !synced) {
        return synced.error();
    }
    result.records = std::move(opened->records);
    result.journal = std::make_unique<SqliteJournal>(io, limits, *std::move(folder),
                                                     std::move(opened->database));
    return result;
}

Result<void> remove_sqlite_journal(std::string folder_path) {
    Result<JournalFolder> folder = JournalFolder::open(std::move(folder_path));
    if (!folder) {
        return folder.error().code == ErrorCode::AddressInUse ? Result<void>() : folder.error();
    }
    return (*std::move(folder)).remove();
}

}  // namespace ddprun::rdzv
