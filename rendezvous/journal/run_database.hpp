#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/limits.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"

struct sqlite3;
struct sqlite3_stmt;

namespace ddprun::rdzv {

/// Changes of runs: each gets a new record, or none.
using RunChanges = std::map<JobId, std::optional<std::string>>;

/// The journal's SQLite database: one row per run. Every call blocks as long as the disk does. Used
/// by one thread at a time.
class RunDatabase {
public:
    /// Opens `path`, or makes it for this user only. Failure is BadMessage if the existing file is
    /// damaged or of another program or version, so that trying again will not help.
    [[nodiscard]] static Result<std::unique_ptr<RunDatabase>> open(const std::string& path);

private:
    struct CloseDatabase {
        void operator()(sqlite3* database) const;
    };
    struct FinalizeStatement {
        void operator()(sqlite3_stmt* statement) const;
    };
    using Database = std::unique_ptr<sqlite3, CloseDatabase>;
    using Statement = std::unique_ptr<sqlite3_stmt, FinalizeStatement>;

public:
    /// For open().
    RunDatabase(Database database, std::string path);
    ~RunDatabase();
    RunDatabase(const RunDatabase&) = delete;
    RunDatabase& operator=(const RunDatabase&) = delete;

    /// All records. Failure as of open(): a record that is not what was written is BadMessage.
    [[nodiscard]] Result<std::map<JobId, std::string>> read(const Limits& limits);

    /// All of `changes` are on stable storage, or (failure) none, and the next call may succeed.
    [[nodiscard]] Result<void> apply(const RunChanges& changes);

private:
    [[nodiscard]] Result<void> begin(bool is_new);
    [[nodiscard]] Result<void> make_tables();
    [[nodiscard]] Result<void> verify();
    [[nodiscard]] Result<void> run(const char* sql);
    [[nodiscard]] Result<std::string> ask(const char* sql);
    [[nodiscard]] Result<Statement> prepare(const char* sql);
    [[nodiscard]] Result<void> apply_one(const JobId& job,
                                         const std::optional<std::string>& record);
    [[nodiscard]] Result<void> check_name() const;
    [[nodiscard]] Error failed(const std::string& doing) const;

    Database database_;
    std::string path_;
    std::uint64_t inode_ = 0;
    Statement replace_;
    Statement erase_;
};

}  // namespace ddprun::rdzv
