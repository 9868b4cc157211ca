#include "rendezvous/journal/run_database.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <sqlite3.h>
#include <xxhash.h>

#include "base/os/unique_fd.hpp"

namespace ddprun::rdzv {

namespace {

constexpr const char* kApplicationId = "1684304502";  // "ddjv", in SQLite's header
constexpr const char* kVersion = "1";

constexpr const char* kSchema =
    "PRAGMA application_id = 1684304502;"
    "PRAGMA user_version = 1;"
    "CREATE TABLE runs(job TEXT PRIMARY KEY, record BLOB NOT NULL, checksum INTEGER NOT NULL);";

/// Covers the name too, so that a record under another run's name is found out.
std::int64_t checksum_of(std::string_view job, std::string_view record) {
    const XXH64_hash_t seed = XXH64(job.data(), job.size(), 0);
    return static_cast<std::int64_t>(XXH64(record.data(), record.size(), seed));
}

Error damaged(const std::string& path, const std::string& how) {
    return Error{ErrorCode::BadMessage, fmt::format("the journal {} {}", path, how)};
}

/// SQLite makes its other files with the mode of this one.
Result<bool> make_file(const std::string& path) {
    const UniqueFd file(
        ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file.is_open()) {
        return true;
    }
    if (errno != EEXIST) {
        return system_error(errno, "the journal " + path + " cannot be made");
    }
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && status.st_size == 0) {
        return damaged(path, "is empty");
    }
    return false;
}

std::string text_of(sqlite3_stmt* statement, int column) {
    const void* const bytes = sqlite3_column_blob(statement, column);
    const auto size = static_cast<std::size_t>(sqlite3_column_bytes(statement, column));
    return bytes == nullptr ? std::string() : std::string(static_cast<const char*>(bytes), size);
}

}  // namespace

void RunDatabase::CloseDatabase::operator()(sqlite3* database) const {
    sqlite3_close(database);
}

void RunDatabase::FinalizeStatement::operator()(sqlite3_stmt* statement) const {
    sqlite3_finalize(statement);
}

// ----------------------------------------------------------------------------------------- opening

Result<std::unique_ptr<RunDatabase>> RunDatabase::open(const std::string& path) {
    const Result<bool> is_new = make_file(path);
    if (!is_new) {
        return is_new.error();
    }
    if (*is_new) {
        // Files of a database that was deleted.
        ::unlink((path + "-wal").c_str());
        ::unlink((path + "-shm").c_str());
    }
    sqlite3* raw = nullptr;
    const int code = sqlite3_open_v2(
        path.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW,
        nullptr);
    Database database(raw);
    if (code != SQLITE_OK) {
        return Error{ErrorCode::System, fmt::format("the journal {} cannot be opened: {}", path,
                                                    sqlite3_errstr(code))};
    }
    auto opened = std::make_unique<RunDatabase>(std::move(database), path);
    const Result<void> begun = opened->begin(*is_new);
    if (!begun) {
        if (*is_new) {
            opened.reset();
            ::unlink(path.c_str());
        }
        return begun.error();
    }
    return opened;
}

RunDatabase::RunDatabase(Database database, std::string path)
    : database_(std::move(database)), path_(std::move(path)) {}

RunDatabase::~RunDatabase() {
    const Result<std::string> has_runs = ask("SELECT EXISTS (SELECT 1 FROM runs)");
    if (has_runs && *has_runs == "0") {
        // Closing must not wait for the disk only to turn a log without runs into a database.
        sqlite3_db_config(database_.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
    }
}

Result<void> RunDatabase::begin(bool is_new) {
    sqlite3_extended_result_codes(database_.get(), 1);
    // Exclusive before WAL: its index lives in memory then, not in a third file.
    for (const char* const sql :
         {"PRAGMA locking_mode = EXCLUSIVE", "PRAGMA trusted_schema = OFF"}) {
        if (const Result<void> done = run(sql); !done) {
            return done.error();
        }
    }
    if (!is_new) {
        if (const Result<void> verified = verify(); !verified) {
            return verified.error();
        }
    }
    if (is_new) {
        // No message was answered yet, so nothing in it can be lost: the disk is waited for once,
        // and not for each of the steps.
        if (const Result<void> done = run("PRAGMA synchronous = OFF"); !done) {
            return done.error();
        }
    }
    const Result<std::string> mode = ask("PRAGMA journal_mode = WAL");
    if (!mode) {
        return mode.error();
    }
    if (*mode != "wal") {
        return Error{
            ErrorCode::System,
            fmt::format("the journal {} cannot be written ahead (mode {}): its file system "
                        "cannot do it; choose a local folder",
                        path_, *mode)};
    }
    if (is_new) {
        if (const Result<void> made = make_tables(); !made) {
            return made.error();
        }
    }
    if (const Result<void> done = run("PRAGMA synchronous = FULL"); !done) {
        return done.error();
    }
    struct stat status {};
    if (::stat(path_.c_str(), &status) != 0) {
        return system_error(errno, "the journal " + path_ + " cannot be examined");
    }
    inode_ = status.st_ino;
    Result<Statement> replace = prepare(
        "INSERT INTO runs(job, record, checksum) VALUES(?1, ?2, ?3) "
        "ON CONFLICT(job) DO UPDATE SET record = ?2, checksum = ?3");
    if (!replace) {
        return replace.error();
    }
    Result<Statement> erase = prepare("DELETE FROM runs WHERE job = ?1");
    if (!erase) {
        return erase.error();
    }
    replace_ = *std::move(replace);
    erase_ = *std::move(erase);
    return {};
}

/// The database's own file is on stable storage then; its write-ahead log will be with the first
/// record.
Result<void> RunDatabase::make_tables() {
    if (const Result<void> done = run(fmt::format("BEGIN;{}COMMIT", kSchema).c_str()); !done) {
        return done.error();
    }
    sqlite3_file* file = nullptr;
    int code = sqlite3_file_control(database_.get(), "main", SQLITE_FCNTL_FILE_POINTER, &file);
    if (code == SQLITE_OK) {
        code = file->pMethods->xSync(file, SQLITE_SYNC_NORMAL);
    }
    if (code != SQLITE_OK) {
        return Error{ErrorCode::System, fmt::format("the journal {} cannot be synchronised: {}",
                                                    path_, sqlite3_errstr(code))};
    }
    return {};
}

Result<void> RunDatabase::verify() {
    const Result<std::string> application = ask("PRAGMA application_id");
    if (!application) {
        return application.error();
    }
    const Result<std::string> version = ask("PRAGMA user_version");
    if (!version) {
        return version.error();
    }
    if (*application != kApplicationId || *version != kVersion) {
        return damaged(path_, fmt::format("is of another program or version (application id {}, "
                                          "version {}, not {} and {})",
                                          *application, *version, kApplicationId, kVersion));
    }
    // The quick one does not look into the index: a wrong name there would let a run have two rows.
    const Result<std::string> check = ask("PRAGMA integrity_check(1)");
    if (!check) {
        return check.error();
    }
    if (*check != "ok") {
        return damaged(path_, "is damaged: " + check->substr(0, check->find('\n')));
    }
    return {};
}

// ------------------------------------------------------------------------------ reading and
// writing

Result<std::map<JobId, std::string>> RunDatabase::read(const Limits& limits) {
    Result<Statement> rows = prepare("SELECT job, record, checksum FROM runs");
    if (!rows) {
        return rows.error();
    }
    std::map<JobId, std::string> records;
    int code = SQLITE_ROW;
    while ((code = sqlite3_step(rows->get())) == SQLITE_ROW) {
        const std::string job = text_of(rows->get(), 0);
        std::string record = text_of(rows->get(), 1);
        if (sqlite3_column_int64(rows->get(), 2) != checksum_of(job, record)) {
            return damaged(path_, fmt::format("is damaged: the checksum of run {} is wrong", job));
        }
        records.insert_or_assign(JobId(job), std::move(record));
        if (records.size() > limits.jobs_max) {
            return damaged(path_, fmt::format("holds more than {} runs", limits.jobs_max));
        }
    }
    if (code != SQLITE_DONE) {
        return failed("reading");
    }
    return records;
}

Result<void> RunDatabase::apply(const RunChanges& changes) {
    if (const Result<void> named = check_name(); !named) {
        return named.error();
    }
    Result<void> done = run("BEGIN IMMEDIATE");
    for (auto change = changes.begin(); done && change != changes.end(); ++change) {
        done = apply_one(change->first, change->second);
    }
    if (done) {
        done = run("COMMIT");
    }
    if (!done && sqlite3_get_autocommit(database_.get()) == 0) {
        // The first failure is returned.
        static_cast<void>(run("ROLLBACK"));
    }
    return done;
}

Result<void> RunDatabase::apply_one(const JobId& job, const std::optional<std::string>& record) {
    const std::string& name = job.value();
    sqlite3_stmt* const statement = record ? replace_.get() : erase_.get();
    int code =
        sqlite3_bind_text64(statement, 1, name.data(), name.size(), SQLITE_STATIC, SQLITE_UTF8);
    if (record && code == SQLITE_OK) {
        code = sqlite3_bind_blob64(statement, 2, record->data(), record->size(), SQLITE_STATIC);
    }
    if (record && code == SQLITE_OK) {
        code = sqlite3_bind_int64(statement, 3, checksum_of(name, *record));
    }
    if (code == SQLITE_OK) {
        code = sqlite3_step(statement);
    }
    Result<void> done;
    if (code != SQLITE_DONE) {
        done = failed("writing");
    }
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return done;
}

/// Writing goes on without failure in a file that has no name any more.
Result<void> RunDatabase::check_name() const {
    struct stat status {};
    if (::stat(path_.c_str(), &status) == 0 && status.st_ino == inode_) {
        return {};
    }
    return Error{
        ErrorCode::NotFound,
        fmt::format("the journal {} was removed or replaced while it was in use; start the "
                    "daemon again, it begins a new one from what the agents know",
                    path_)};
}

// ----------------------------------------------------------------------------------------- helpers

Result<void> RunDatabase::run(const char* sql) {
    if (sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr) != SQLITE_OK) {
        return failed("writing");
    }
    return {};
}

/// The first column of the first row.
Result<std::string> RunDatabase::ask(const char* sql) {
    Result<Statement> statement = prepare(sql);
    if (!statement) {
        return statement.error();
    }
    if (sqlite3_step(statement->get()) != SQLITE_ROW) {
        return failed("reading");
    }
    return text_of(statement->get(), 0);
}

Result<RunDatabase::Statement> RunDatabase::prepare(const char* sql) {
    sqlite3_stmt* raw = nullptr;
    if (sqlite3_prepare_v2(database_.get(), sql, -1, &raw, nullptr) != SQLITE_OK) {
        return failed("reading");
    }
    return Statement(raw);
}

Error RunDatabase::failed(const std::string& doing) const {
    sqlite3* const database = database_.get();
    const int code = sqlite3_extended_errcode(database) & 0xff;
    const int errno_value = sqlite3_system_errno(database);
    std::string why = sqlite3_errmsg(database);
    if ((code == SQLITE_FULL || code == SQLITE_IOERR) && errno_value != 0) {
        why += fmt::format(" ({})", std::generic_category().message(errno_value));
    }
    if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB || code == SQLITE_ERROR ||
        sqlite3_extended_errcode(database) == SQLITE_IOERR_SHORT_READ) {
        return damaged(path_, "is damaged: " + why);
    }
    const char* const advice = code == SQLITE_FULL || errno_value == ENOSPC || errno_value == EDQUOT
                                   ? "; free space there"
                                   : "; see to its disk and permissions";
    return Error{ErrorCode::System,
                 fmt::format("{} the journal {} failed: {}{}", doing, path_, why, advice)};
}

}  // namespace ddprun::rdzv
