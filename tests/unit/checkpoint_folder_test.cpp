// Checkpoints in a folder: publishing, choosing, and what damage does.

#include "worker_runtime/checkpoint/checkpoint_folder.hpp"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/unit/checkpoint_fixture.hpp"
#include "worker_runtime/checkpoint/folder.hpp"
#include "worker_runtime/checkpoint/hashing.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"
#include "worker_runtime/checkpoint/old_checkpoints.hpp"
#include "worker_runtime/checkpoint/pins.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"
#include "worker_runtime/checkpoint/verification.hpp"

using namespace ddprun;
using namespace ddprun::worker;
using namespace ddprun::worker::test;

namespace {

int folder_sync_error = 0;  // of fsync() of a folder, if not 0

using Names = std::vector<std::string>;
using Steps = std::vector<std::int64_t>;

// While it lives the process has the rights of an ordinary user.
class NotRoot {
public:
    NotRoot() { REQUIRE((::geteuid() != 0 || ::seteuid(user()) == 0)); }
    NotRoot(const NotRoot&) = delete;
    NotRoot& operator=(const NotRoot&) = delete;
    ~NotRoot() {
        if (::getuid() == 0 && ::seteuid(0) != 0) {
            ::abort();
        }
    }

    static uid_t user() { return ::getuid() == 0 ? 65534 : ::getuid(); }
};

bool is_verified(const std::string& dir, std::int64_t step) {
    return verify_checkpoint(dir, step, [](std::uint64_t /*bytes*/) {}).has_value();
}

// Two tensors whose bytes depend on `seed`.
Result<std::string> publish(const std::string& dir, std::int64_t step, unsigned seed = 1,
                            const PublishOptions& options = {}) {
    const std::string weight = some_bytes(24, seed);
    const std::string bias = some_bytes(6, seed + 1);
    const CheckpointInfo info{
        .step = step, .generation = Generation(5), .world_size = 2, .values = {{"epoch", "3"}}};
    return publish_checkpoint(
        dir, info, {tensor("weight", "F32", {2, 3}, weight), tensor("bias", "BF16", {3}, bias)},
        options);
}

std::string weight_of(const std::string& dir, std::int64_t step) {
    const Result<LoadedCheckpoint> loaded = read_checkpoint(dir, step);
    return loaded ? text_of(loaded->tensors.at("weight")) : "error: " + loaded.error().what;
}

std::string error_of(const std::string& dir, std::int64_t step) {
    const Result<LoadedCheckpoint> loaded = read_checkpoint(dir, step);
    return loaded ? "" : loaded.error().what;
}

Steps steps_in(const std::string& dir) {
    return list_checkpoints(dir).value();
}

}  // namespace

// In the place of libc's.
extern "C" int fsync(int fd) {
    struct stat status {};
    if (folder_sync_error != 0 && ::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)) {
        errno = folder_sync_error;
        return -1;
    }
    return static_cast<int>(::syscall(SYS_fsync, fd));
}

TEST_CASE("a published checkpoint is listed and read as it was given") {
    const TempDir folder;
    const std::string dir = folder / "a/b/c";  // none of it exists
    const Result<std::string> path = publish(dir, 42);
    REQUIRE(path);
    CHECK(*path == dir + "/step-000000000042");
    CHECK(names_in(dir) == Names{"step-000000000042"});
    CHECK(names_in(*path) == Names{"manifest.json", kModelFile});
    CHECK(steps_in(dir) == Steps{42});
    const Result<LoadedCheckpoint> loaded = read_checkpoint(dir, 42);
    REQUIRE(loaded);
    CHECK(loaded->info.step == 42);
    CHECK(loaded->info.generation == Generation(5));
    CHECK(loaded->info.world_size == 2);
    CHECK(loaded->info.values == std::map<std::string, std::string>{{"epoch", "3"}});
    REQUIRE(loaded->tensors.size() == 2);
    const StoredTensor& weight = loaded->tensors.at("weight");
    CHECK(weight.dtype == "F32");
    CHECK(weight.shape == std::vector<std::int64_t>{2, 3});
    CHECK(text_of(weight) == some_bytes(24));
    CHECK(reinterpret_cast<std::uintptr_t>(weight.parts.front().bytes.data()) % 8 == 0);
    CHECK(text_of(loaded->tensors.at("bias")) == some_bytes(6, 2));
}

TEST_CASE("a checkpoint without tensors and one larger than a chunk are read again") {
    const TempDir folder;
    REQUIRE(publish_checkpoint(folder.path(), {.step = 1}, {}));
    CHECK(read_checkpoint(folder.path(), 1).value().tensors.empty());

    const std::string large = some_bytes((3U << 20) + 5);
    const std::string small = some_bytes(1);
    std::vector<TensorView> tensors{
        tensor("large", "U8", {static_cast<std::int64_t>(large.size())}, large)};
    for (int i = 0; i < 200; ++i) {
        tensors.push_back(tensor("small." + std::to_string(i), "U8", {}, small));
    }
    REQUIRE(publish_checkpoint(folder.path(), {.step = 2}, tensors));
    std::uint64_t bytes = 0;
    const auto count = [&bytes](std::uint64_t more) { bytes += more; };
    CHECK_FALSE(verify_checkpoint(folder.path(), 2, count).has_error());
    CHECK(bytes == std::filesystem::file_size(folder / "step-000000000002/" + kModelFile));
    CHECK(outline_of_checkpoint(folder.path(), 2).value().bytes == bytes);
    const Result<LoadedCheckpoint> loaded = read_checkpoint(folder.path(), 2);
    REQUIRE(loaded);
    CHECK(text_of(loaded->tensors.at("large")) == large);
    CHECK(text_of(loaded->tensors.at("small.199")) == small);
    CHECK(loaded->tensors.size() == 201);
}

TEST_CASE("every flipped bit of every file is noticed") {
    const TempDir folder;
    const std::string path = publish(folder.path(), 1).value();
    for (const std::string& name : names_in(path)) {
        const std::string good = read_text(path + "/" + name);
        const UniqueFd file(::open((path + "/" + name).c_str(), O_WRONLY | O_CLOEXEC));
        const auto write_byte = [&](std::size_t at, unsigned mask) {
            const auto byte =
                static_cast<unsigned char>(static_cast<unsigned char>(good[at]) ^ mask);
            REQUIRE(::pwrite(file.get(), &byte, 1, static_cast<off_t>(at)) == 1);
        };
        for (std::size_t at = 0; at < good.size(); ++at) {
            for (unsigned bit = 0; bit < 8; ++bit) {
                write_byte(at, 1U << bit);
                if (read_checkpoint(folder.path(), 1) || is_verified(folder.path(), 1)) {
                    FAIL("bit " << bit << " of byte " << at << " of " << name << " not noticed");
                }
            }
            write_byte(at, 0);
        }
        CHECK(error_of(folder.path(), 1).empty());
    }
}

TEST_CASE("every length but the right one of every file is noticed") {
    const TempDir folder;
    const std::string path = publish(folder.path(), 1).value();
    for (const std::string& name : names_in(path)) {
        const std::string file = path + "/" + name;
        const std::string good = read_text(file);
        for (std::size_t size = good.size(); size-- > 0;) {
            std::filesystem::resize_file(file, size);
            if (read_checkpoint(folder.path(), 1) || is_verified(folder.path(), 1)) {
                FAIL(size << " of " << good.size() << " bytes of " << name << " not noticed");
            }
        }
        write_text(file, good + std::string(1, '\0'));
        CHECK_FALSE(error_of(folder.path(), 1).empty());
        write_text(file, good);
        CHECK(error_of(folder.path(), 1).empty());
    }
}

TEST_CASE("the error of a checkpoint that cannot be used names file, values and step") {
    const TempDir folder;
    const std::string dir = folder.path();
    const std::string path = publish(dir, 7).value();
    const std::string model = path + "/" + kModelFile;
    const std::string good = read_text(model);
    write_text(model, good.substr(0, 10));
    CHECK(error_of(dir, 7) == "checkpoint of step 7 cannot be used: " + model +
                                  " has 10 bytes, the manifest says " +
                                  std::to_string(good.size()));
    write_text(model, good.substr(0, good.size() - 1) + "x");
    CHECK_THAT(error_of(dir, 7), Catch::Contains(model + ": its checksum is "));
    std::filesystem::remove(model);
    CHECK_THAT(error_of(dir, 7), Catch::Contains(model + " is missing"));
    std::filesystem::create_directory(model);
    CHECK_THAT(error_of(dir, 7), Catch::Contains(model + " is not a file"));
    std::filesystem::remove(model);
    REQUIRE(::mkfifo(model.c_str(), 0600) == 0);
    CHECK_THAT(error_of(dir, 7), Catch::Contains(model + " is not a file"));
    std::filesystem::remove(path + "/manifest.json");
    CHECK_THAT(error_of(dir, 7), Catch::Contains("/manifest.json is missing"));
    CHECK(read_checkpoint(dir, 8).error().code == ErrorCode::NotFound);
    CHECK(steps_in(dir) == Steps{7});
}

TEST_CASE("a checkpoint in the place of another step is not taken for it") {
    const TempDir folder;
    const std::string path = publish(folder.path(), 7).value();
    std::filesystem::rename(path, folder / "step-000000000009");
    CHECK_THAT(error_of(folder.path(), 9), Catch::Contains("the manifest is of step 7"));
    CHECK_FALSE(is_verified(folder.path(), 9));
    CHECK(outline_of_checkpoint(folder.path(), 9).has_error());
}

TEST_CASE("a file with a right checksum that is no safetensors is refused") {
    const TempDir folder;
    const std::string path = publish(folder.path(), 7).value();
    std::string manifest = read_text(path + "/manifest.json");
    const std::string model = read_text(path + "/" + kModelFile);
    std::string hostile = model;
    hostile[0] = 1;
    const std::string old_sum = xxh3_128_hex(model);
    manifest.replace(manifest.find(old_sum), old_sum.size(), xxh3_128_hex(hostile));
    manifest.resize(manifest.find(",\n  \"checksum\""));
    manifest += ",\n  \"checksum\": \"" + xxh3_128_hex(manifest) + "\"\n}\n";
    write_text(path + "/manifest.json", manifest);
    write_text(path + "/" + kModelFile, hostile);
    CHECK_THAT(error_of(folder.path(), 7), Catch::Contains("the header"));
}

TEST_CASE("a checkpoint of several files is read as one, and no tensor is in two of them") {
    const TempDir folder;
    const std::string path = folder / "step-000000000007";
    const std::string bytes = some_bytes(4);
    const auto write = [&](const std::vector<std::string>& names) {
        Manifest manifest{.info = {.step = 7}, .files = {}};
        std::filesystem::create_directories(path);
        for (const std::string& name : names) {
            const std::vector<TensorView> tensors{tensor(name, "F32", {1}, bytes)};
            const std::string file = plan_safetensors(tensors).value().header + bytes;
            manifest.files.push_back(
                {.name = std::to_string(manifest.files.size()) + ".safetensors",
                 .size = file.size(),
                 .xxh3_128 = xxh3_128_hex(file)});
            write_text(path + "/" + manifest.files.back().name, file);
        }
        write_text(path + "/manifest.json", format_manifest(manifest).value());
    };
    write({"a", "b", "c"});
    const Result<LoadedCheckpoint> loaded = read_checkpoint(folder.path(), 7);
    REQUIRE(loaded);
    REQUIRE(loaded->tensors.size() == 3);
    for (const auto& [name, stored] : loaded->tensors) {
        CHECK(text_of(stored) == bytes);
    }
    write({"a", "b", "a"});
    CHECK_THAT(error_of(folder.path(), 7),
               Catch::Contains("tensor \"a\": the element at [0] of a tensor of shape [1] is in "
                               "several of its parts"));
    write({"a", "b"});
    std::filesystem::remove(path + "/1.safetensors");
    CHECK_THAT(error_of(folder.path(), 7), Catch::Contains("1.safetensors is missing"));
}

TEST_CASE("other files and names do not matter") {
    const TempDir folder;
    const std::string dir = folder.path();
    const std::string path = publish(dir, 5).value();
    write_text(path + "/notes.txt", "mine");
    for (const std::string name :
         {"step-5", "step-0000000000005", "step-00000000000x", "step-", "step-000000000006.old",
          "xstep-000000000006", "step--00000000001", "step-99999999999999999999", ".hidden"}) {
        std::filesystem::create_directory(dir + "/" + name);
    }
    write_text(dir + "/step-000000000008", "a file");
    CHECK(steps_in(dir) == Steps{5});
    CHECK(error_of(dir, 5).empty());
    CHECK(list_checkpoints(dir + "/none").value().empty());
    CHECK_FALSE(list_checkpoints(dir + "/step-000000000008"));
}

TEST_CASE("the newest step comes first, whatever its number of digits") {
    const TempDir folder;
    const PublishOptions options{.keep = 10};
    const Steps steps{9, 10, 1'234'567'890'123, 0, INT64_MAX};
    for (const std::int64_t step : steps) {
        REQUIRE(publish(folder.path(), step, 1, options));
    }
    CHECK(steps_in(folder.path()) == Steps{INT64_MAX, 1'234'567'890'123, 10, 9, 0});
    CHECK(error_of(folder.path(), INT64_MAX).empty());
}

TEST_CASE("an isolated worker publishes nothing and leaves nothing") {
    const TempDir folder;
    REQUIRE(publish(folder.path(), 1));
    Names seen;
    const PublishOptions options{.keep = 1, .is_isolated = [&] {
                                     seen = names_in(folder.path());
                                     return true;
                                 }};
    const Result<std::string> refused = publish(folder.path(), 2, 1, options);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::Refused);
    CHECK_THAT(refused.error().what, Catch::Contains("isolated"));
    // It was asked when all was written and nothing was visible.
    REQUIRE(seen.size() == 2);
    CHECK(step_of_aside_name(seen[0], kPartialEnding) == 2);
    CHECK(names_in(folder.path()) == Names{"step-000000000001"});
    CHECK(error_of(folder.path(), 1).empty());
}

TEST_CASE("a checkpoint of the same step takes the place of the other, damaged or not") {
    const TempDir folder;
    const std::string path = publish(folder.path(), 3, 1).value();
    REQUIRE(publish(folder.path(), 3, 2));
    CHECK(weight_of(folder.path(), 3) == some_bytes(24, 2));
    std::filesystem::remove(path + "/manifest.json");
    REQUIRE(publish(folder.path(), 3, 3));
    CHECK(weight_of(folder.path(), 3) == some_bytes(24, 3));
    CHECK(names_in(folder.path()) == Names{"step-000000000003"});
    // A replacement does not change a checkpoint that was loaded before.
    const Result<LoadedCheckpoint> loaded = read_checkpoint(folder.path(), 3);
    REQUIRE(publish(folder.path(), 3, 4));
    CHECK(text_of(loaded->tensors.at("weight")) == some_bytes(24, 3));
}

TEST_CASE("a file in the place of a checkpoint is replaced too") {
    const TempDir folder;
    write_text(folder / "step-000000000003", "a file");
    REQUIRE(publish(folder.path(), 3, 2));
    CHECK(weight_of(folder.path(), 3) == some_bytes(24, 2));
    CHECK(names_in(folder.path()) == Names{"step-000000000003"});
}

TEST_CASE("replacing works both with and without an exchange of names, and can be undone") {
    for (const Exchange exchange : {Exchange::IfPossible, Exchange::Never}) {
        const TempDir folder;
        const std::string from = aside_name(3, kPartialEnding);
        const std::string place = folder / "step-000000000003";
        std::filesystem::create_directory(place);
        std::filesystem::create_directory(folder / from);
        write_text(place + "/old", "");
        write_text(folder / (from + "/new"), "");
        const UniqueFd fd = open_folder(folder.path()).value();
        const Result<PutInPlace> put = put_in_place(fd.get(), from, 3, exchange);
        REQUIRE(put);
        CHECK(names_in(place) == Names{"new"});
        CHECK(names_in(folder / put->replaced) == Names{"old"});
        CHECK((put->replaced == from) == (exchange == Exchange::IfPossible));
        take_back(fd.get(), from, 3, *put);
        CHECK(names_in(place) == Names{"old"});
        CHECK(names_in(folder / from) == Names{"new"});
        CHECK(names_in(folder.path()).size() == 2);
    }
}

TEST_CASE("the newest are kept and older ones go") {
    const TempDir folder;
    for (std::int64_t step = 1; step <= 6; ++step) {
        REQUIRE(publish(folder.path(), step));
    }
    CHECK(steps_in(folder.path()) == Steps{6, 5, 4});
    REQUIRE(publish(folder.path(), 7, 1, {.keep = 1}));
    CHECK(names_in(folder.path()) == Names{"step-000000000007"});
    const Result<std::string> none = publish(folder.path(), 8, 1, {.keep = 0});
    CHECK_FALSE(none);
    CHECK(steps_in(folder.path()) == Steps{7});
}

TEST_CASE("checkpoints of every so many steps are kept for good, beside the newest") {
    const TempDir folder;
    for (std::int64_t step = 1; step <= 11; ++step) {
        REQUIRE(publish(folder.path(), step, 1, {.keep = 2, .keep_every = 4}));
    }
    CHECK(steps_in(folder.path()) == Steps{11, 10, 8, 4});
    // One that was just written counts as the newest, also if it is one of those.
    REQUIRE(publish(folder.path(), 12, 1, {.keep = 2, .keep_every = 4}));
    CHECK(steps_in(folder.path()) == Steps{12, 11, 8, 4});
}

TEST_CASE("pinned checkpoints stay and are not counted, until they are not pinned any more") {
    const TempDir folder;
    const PublishOptions two{.keep = 2};
    for (std::int64_t step = 1; step <= 5; ++step) {
        REQUIRE(publish(folder.path(), step, 1, two));
        if (step == 2) {
            REQUIRE(pin_checkpoint(folder.path(), 2));
            REQUIRE(pin_checkpoint(folder.path(), 2));
        }
    }
    CHECK(steps_in(folder.path()) == Steps{5, 4, 2});
    CHECK(is_pinned(folder / "step-000000000002"));
    CHECK(error_of(folder.path(), 2).empty());
    // A checkpoint that takes its place is pinned, too.
    REQUIRE(publish(folder.path(), 2, 7, two));
    CHECK(is_pinned(folder / "step-000000000002"));
    REQUIRE(unpin_checkpoint(folder.path(), 2));
    REQUIRE(unpin_checkpoint(folder.path(), 2));
    REQUIRE(publish(folder.path(), 6, 1, two));
    CHECK(names_in(folder.path()) == Names{"step-000000000005", "step-000000000006"});
    CHECK_THAT(pin_checkpoint(folder.path(), 2).error().what,
               Catch::Contains("step-000000000002 cannot be opened"));
    CHECK_FALSE(unpin_checkpoint(folder.path(), 2));
}

TEST_CASE("a thread removes old checkpoints, which no reader finds any more") {
    const TempDir folder;
    {
        OldCheckpoints old([](const std::string& line) { FAIL(line); });
        PublishOptions one{.keep = 1};
        one.old = &old;
        for (std::int64_t step = 1; step <= 20; ++step) {
            REQUIRE(publish(folder.path(), step, 1, one));
            CHECK(steps_in(folder.path()) == Steps{step});
        }
        REQUIRE(publish(folder.path(), 20, 2, one));
        old.wait();
        CHECK(names_in(folder.path()) == Names{"step-000000000020"});
        REQUIRE(publish(folder.path(), 21, 1, one));
    }
    CHECK(names_in(folder.path()) == Names{"step-000000000021"});
}

TEST_CASE("torn checkpoints are not counted, and what was just written stays") {
    const TempDir folder;
    const PublishOptions two{.keep = 2};
    for (std::int64_t step = 1; step <= 5; ++step) {
        REQUIRE(publish(folder.path(), step, 1, {.keep = 10}));
    }
    std::filesystem::remove(folder / "step-000000000003/manifest.json");
    write_text(folder / ("step-000000000002/" + std::string(kModelFile)), "torn");
    // 4 and 5 could not be read, so training went on from 1.
    REQUIRE(publish(folder.path(), 3, 1, two));
    CHECK(steps_in(folder.path()) == Steps{5, 4, 3, 2, 1});
    REQUIRE(publish(folder.path(), 6, 1, two));
    CHECK(steps_in(folder.path()) == Steps{6, 5});
}

TEST_CASE("removing an old checkpoint that is a link leaves what it points to") {
    const TempDir folder;
    const TempDir elsewhere;
    const std::string path = publish(elsewhere.path(), 1).value();
    std::filesystem::create_directory_symlink(path, folder / "step-000000000001");
    REQUIRE(steps_in(folder.path()) == Steps{1});
    REQUIRE(publish(folder.path(), 2, 1, {.keep = 1}));
    CHECK(names_in(folder.path()) == Names{"step-000000000002"});
    CHECK(error_of(elsewhere.path(), 1).empty());
}

TEST_CASE("a file that may not grow is an error that leaves nothing") {
    const TempDir folder;
    REQUIRE(publish(folder.path(), 1));
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    const auto handler = ::signal(SIGXFSZ, SIG_IGN);
    for (const rlim_t bytes : {0U, 100U, 8192U}) {
        rlimit limit = before;
        limit.rlim_cur = bytes;
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
        const std::string large = some_bytes(8192);
        const Result<std::string> refused =
            publish_checkpoint(folder.path(), {.step = 2}, {tensor("w", "U8", {8192}, large)});
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
        REQUIRE_FALSE(refused);
        CHECK_THAT(refused.error().what,
                   Catch::Contains("checkpoint of step 2 was not written to " + folder.path()));
        CHECK_THAT(refused.error().what,
                   Catch::Contains("cannot be written beyond " + std::to_string(bytes) + " bytes"));
        CHECK_THAT(refused.error().what, Catch::Contains("File too large"));
        CHECK(names_in(folder.path()) == Names{"step-000000000001"});
    }
    ::signal(SIGXFSZ, handler);
}

TEST_CASE("a folder that cannot be written is an error that says which") {
    const TempDir folder;
    write_text(folder / "file", "");
    const Result<std::string> below_file = publish(folder / "file/checkpoints", 1);
    REQUIRE_FALSE(below_file);
    CHECK_THAT(below_file.error().what, Catch::Contains(folder / "file"));
    CHECK_FALSE(publish("", 1));
    const Result<void> checked = check_checkpoint_folder(folder / "file/checkpoints");
    REQUIRE_FALSE(checked);
    CHECK_THAT(checked.error().what, Catch::Contains(folder / "file/checkpoints"));

    REQUIRE(::chmod(folder.path().c_str(), 0555) == 0);
    const Result<std::string> refused = [&] {
        const NotRoot not_root;
        CHECK_FALSE(check_checkpoint_folder(folder.path()));
        return publish(folder.path(), 1);
    }();
    REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::PermissionDenied);
    CHECK_THAT(refused.error().what, Catch::Contains(folder.path()));
    CHECK(names_in(folder.path()) == Names{"file"});
}

TEST_CASE("a file system that syncs no folders is used, and one that fails to is not") {
    const TempDir folder;
    for (const int passed_over : {EINVAL, ENOTSUP}) {
        folder_sync_error = passed_over;
        const std::string dir = folder / std::to_string(passed_over);
        CHECK(check_checkpoint_folder(dir));
        CHECK(publish(dir, 1));
        CHECK(steps_in(dir) == Steps{1});
    }
    folder_sync_error = EIO;
    CHECK_FALSE(check_checkpoint_folder(folder / "failing"));
    CHECK_FALSE(publish(folder.path(), 1));
    folder_sync_error = 0;
}

TEST_CASE("a folder is checked by making it and writing there, and nothing is left") {
    const TempDir folder;
    REQUIRE(check_checkpoint_folder(folder / "a/b"));
    CHECK(names_in(folder / "a/b").empty());
    REQUIRE(check_checkpoint_folder(folder / "a/b"));
}

TEST_CASE("an old checkpoint that cannot be removed is a warning, not a failure") {
    const TempDir folder;
    Names warnings;
    {
        REQUIRE(::chown(folder.path().c_str(), NotRoot::user(), static_cast<gid_t>(-1)) == 0);
        const NotRoot not_root;
        const std::string old = publish(folder.path(), 1).value();
        REQUIRE(::chmod(old.c_str(), 0555) == 0);
        const PublishOptions options{
            .keep = 1, .on_warning = [&](const std::string& text) { warnings.push_back(text); }};
        CHECK(publish(folder.path(), 2, 1, options));
    }
    REQUIRE(warnings.size() == 1);
    CHECK_THAT(warnings.front(),
               Catch::StartsWith("old checkpoint " + (folder / ".step-000000000001.")) &&
                   Catch::EndsWith(".partial cannot be removed"));
    CHECK(steps_in(folder.path()) == Steps{2});
    CHECK(error_of(folder.path(), 2).empty());
    for (const std::string& name : names_in(folder.path())) {
        REQUIRE(::chmod((folder / name).c_str(), 0755) == 0);
    }
}

TEST_CASE("leftovers go, a checkpoint that was put aside comes back, everything else stays") {
    const TempDir folder;
    REQUIRE(publish(folder.path(), 1, 1));
    REQUIRE(publish(folder.path(), 2, 2));
    REQUIRE(publish(folder.path(), 3, 3));
    // A writer died between its two renames, another before it removed the replaced one.
    std::filesystem::rename(folder / "step-000000000002", folder / aside_name(2, kReplacedEnding));
    std::filesystem::copy(folder / "step-000000000001", folder / aside_name(3, kReplacedEnding));
    std::filesystem::copy(folder / "step-000000000001", folder / aside_name(4, kPartialEnding));
    // It was pinned when its writer was about to remove it.
    const std::string pinned = folder / aside_name(5, kPartialEnding);
    std::filesystem::copy(folder / "step-000000000001", pinned);
    write_text(pinned + "/pinned", "");
    std::filesystem::create_directory(folder / ".step-000000000009.mine.partial");
    std::filesystem::create_directory(folder / "mine.partial");
    CHECK(steps_in(folder.path()) == Steps{3, 1});
    remove_leftovers(folder.path());
    CHECK(names_in(folder.path()) == Names{".step-000000000009.mine.partial", "mine.partial",
                                           "step-000000000001", "step-000000000002",
                                           "step-000000000003", "step-000000000005"});
    CHECK(weight_of(folder.path(), 2) == some_bytes(24, 2));
    CHECK(weight_of(folder.path(), 3) == some_bytes(24, 3));
    remove_leftovers(folder / "none");
}
