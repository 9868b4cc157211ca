// The rules of CheckpointShelf, each by itself.

#include <algorithm>
#include <string>
#include <vector>

#include "agent/memory/checkpoint_shelf.hpp"
#include "tests/support/catch.hpp"

using namespace ddprun;
using agent::BufferId;
using agent::CheckpointShelf;
using agent::ShelfOwner;
using agent::StepKey;
using worker::MemoryFile;

namespace {

constexpr std::uint64_t kBytesMax = 1000;
constexpr std::size_t kFilesMax = 100;
const std::string kSum(32, 'a');

ShelfOwner rank(int number) {
    return {.rank = Rank(number)};
}

ShelfOwner copy_of(int number) {
    return {.kind = ShelfOwner::Kind::Copied, .rank = Rank(number)};
}

StepKey at(std::uint64_t generation, std::int64_t step, std::uint64_t save = 0) {
    return {.generation = Generation(generation), .step = step, .save = save};
}

std::vector<MemoryFile> one(const std::string& name, std::uint64_t size = 100) {
    return {MemoryFile{.name = name, .size = size, .xxh3_128 = {}}};
}

std::vector<MemoryFile> with_sum(std::vector<MemoryFile> files) {
    for (MemoryFile& file : files) {
        file.xxh3_128 = kSum;
    }
    return files;
}

BufferId write(CheckpointShelf& shelf, const ShelfOwner& owner, const StepKey& key,
               const std::string& name, std::uint64_t size = 100) {
    const auto rooms = shelf.begin(owner, key, one(name, size));
    REQUIRE(rooms.has_value());
    REQUIRE(shelf.finish(owner, key, with_sum(one(name, size))).has_value());
    return rooms->front().buffer;
}

BufferId seal(CheckpointShelf& shelf, const ShelfOwner& owner, const StepKey& key,
              const std::string& name) {
    const BufferId buffer = write(shelf, owner, key, name);
    REQUIRE(shelf.seal(key.generation, key).has_value());
    return buffer;
}

bool has(const CheckpointShelf& shelf, const StepKey& key, const std::string& name) {
    return shelf.find(key, name).has_value();
}

}  // namespace

TEST_CASE("a rank writes into two buffers in turn, and the sealed step's is not touched") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    const BufferId first = seal(shelf, rank(0), at(1, 1), "a");
    const BufferId second = seal(shelf, rank(0), at(1, 2), "a");
    CHECK(second != first);
    const auto third = shelf.begin(rank(0), at(1, 3), one("a"));
    REQUIRE(third.has_value());
    CHECK(third->front().buffer == first);
    CHECK_FALSE(third->front().is_new);
    CHECK(shelf.find(at(1, 2), "a")->buffer == second);
    CHECK(shelf.bytes_used() == 200);
}

TEST_CASE("a free buffer of another size is not reused, and makes room when the bound is near") {
    CheckpointShelf shelf(250, kFilesMax);
    const BufferId first = seal(shelf, rank(0), at(1, 1), "a");
    (void)seal(shelf, rank(0), at(1, 2), "a");
    CHECK(shelf.take_dropped().empty());
    const auto third = shelf.begin(rank(0), at(1, 3), one("a", 110));
    REQUIRE(third.has_value());
    CHECK(third->front().is_new);
    CHECK(shelf.take_dropped() == std::vector{first});
    CHECK(shelf.bytes_used() == 210);
}

TEST_CASE("a begin that would pass the bound is refused, begins nothing and names the bound") {
    CheckpointShelf shelf(250, kFilesMax);
    (void)seal(shelf, rank(0), at(1, 1), "a");
    (void)write(shelf, copy_of(1), at(1, 1), "b");
    const auto refused = shelf.begin(rank(0), at(1, 2), one("a"));
    REQUIRE(refused.has_error());
    CHECK(refused.error().code == ErrorCode::LimitExceeded);
    CHECK(refused.error().what.find("--memory-checkpoints") != std::string::npos);
    CHECK(shelf.bytes_used() == 200);
    CHECK(has(shelf, at(1, 1), "a"));
    CHECK(shelf.begin(rank(0), at(1, 2), one("a", 50)).has_value());
}

TEST_CASE("a file that alone is past the bound is refused") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    CHECK(shelf.begin(rank(0), at(1, 1), one("a", kBytesMax + 1)).has_error());
    CHECK(shelf.begin(rank(0), at(1, 1), one("a", kBytesMax)).has_value());
}

TEST_CASE("sizes whose sum is past all numbers are refused") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    std::vector<MemoryFile> files = one("a", ~std::uint64_t{0});
    files.push_back(one("b", ~std::uint64_t{0}).front());
    CHECK(shelf.begin(rank(0), at(1, 1), files).has_error());
}

TEST_CASE("more files than the bound allows are refused") {
    CheckpointShelf shelf(kBytesMax, 1);
    (void)write(shelf, rank(0), at(1, 1), "a", 1);
    CHECK(shelf.begin(rank(0), at(1, 1), one("b", 1)).has_error());
}

TEST_CASE("free buffers count to the bound of files, and make room") {
    CheckpointShelf shelf(kBytesMax, 2);
    const BufferId first = seal(shelf, rank(0), at(1, 1), "a");
    (void)seal(shelf, rank(0), at(1, 2), "a");
    REQUIRE(shelf.begin(rank(0), at(1, 3), one("a", 7)).has_value());
    CHECK(shelf.take_dropped() == std::vector{first});
}

TEST_CASE("a worker gets no buffer into which another live worker may write") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    const BufferId first = seal(shelf, rank(0), at(1, 1), "a");
    (void)seal(shelf, rank(0), at(1, 2), "a");
    const auto of_other = shelf.begin(rank(1), at(1, 3), one("b"));
    REQUIRE(of_other.has_value());
    CHECK(of_other->front().is_new);
    const auto of_copy = shelf.begin(copy_of(2), at(1, 3), one("c"));
    REQUIRE(of_copy.has_value());
    CHECK(of_copy->front().is_new);
    const auto later = shelf.begin(rank(1), at(2, 3), one("b"));
    REQUIRE(later.has_value());
    CHECK(later->front().buffer == first);
}

TEST_CASE("a free buffer of a copy serves anybody") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    const BufferId copied = write(shelf, copy_of(1), at(1, 1), "b");
    (void)write(shelf, copy_of(1), at(1, 2), "b", 50);
    const auto rooms = shelf.begin(rank(0), at(1, 2), one("a"));
    REQUIRE(rooms.has_value());
    CHECK(rooms->front().buffer == copied);
}

TEST_CASE("a buffer that a reader has had is dropped, not reused") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    const BufferId first = seal(shelf, rank(0), at(1, 1), "a");
    REQUIRE(shelf.open(at(1, 1), "a")->buffer == first);
    (void)seal(shelf, rank(0), at(1, 2), "a");
    CHECK(shelf.take_dropped() == std::vector{first});
    CHECK(shelf.begin(rank(0), at(1, 3), one("a"))->front().is_new);
}

TEST_CASE("what is not written is neither listed nor found nor opened") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    REQUIRE(shelf.begin(rank(0), at(1, 1), one("a")).has_value());
    CHECK(shelf.list().empty());
    CHECK_FALSE(has(shelf, at(1, 1), "a"));
    CHECK_FALSE(shelf.open(at(1, 1), "a").has_value());
}

TEST_CASE("a begin forgets the owner's other steps that are not sealed, and nothing else") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    (void)seal(shelf, rank(0), at(1, 1), "a");
    (void)write(shelf, rank(0), at(1, 2), "a");
    (void)write(shelf, rank(1), at(1, 2), "b");
    REQUIRE(shelf.begin(rank(0), at(1, 3), one("a")).has_value());
    CHECK(has(shelf, at(1, 1), "a"));
    CHECK_FALSE(has(shelf, at(1, 2), "a"));
    CHECK(has(shelf, at(1, 2), "b"));
}

TEST_CASE("a second begin of a step adds files, and replaces those of the same name") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    (void)write(shelf, rank(0), at(1, 1), "a");
    (void)write(shelf, rank(0), at(1, 1), "manifest.json", 10);
    CHECK(has(shelf, at(1, 1), "a"));
    REQUIRE(shelf.begin(rank(0), at(1, 1), one("a")).has_value());
    CHECK_FALSE(has(shelf, at(1, 1), "a"));
    CHECK(has(shelf, at(1, 1), "manifest.json"));
    CHECK(shelf.bytes_used() == 110);
}

TEST_CASE("the first begin of a generation forgets what earlier ones have not sealed") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    (void)seal(shelf, rank(0), at(1, 1), "a");
    (void)write(shelf, rank(1), at(1, 2), "b");
    (void)write(shelf, copy_of(2), at(1, 2), "c");
    REQUIRE(shelf.greet(Generation(2)).has_value());
    CHECK(has(shelf, at(1, 2), "b"));
    REQUIRE(shelf.begin(rank(0), at(2, 2), one("a")).has_value());
    CHECK(has(shelf, at(1, 1), "a"));
    CHECK_FALSE(has(shelf, at(1, 2), "b"));
    CHECK_FALSE(has(shelf, at(1, 2), "c"));
}

TEST_CASE("a file that another rank has written, and a sealed step, are not begun again") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    (void)write(shelf, rank(0), at(1, 1), "a");
    CHECK(shelf.begin(rank(1), at(1, 1), one("a")).error().code == ErrorCode::Refused);
    REQUIRE(shelf.seal(Generation(1), at(1, 1)).has_value());
    CHECK(shelf.begin(rank(0), at(1, 1), one("a")).error().code == ErrorCode::Refused);
    CHECK(shelf.begin(rank(0), at(1, 1), one("z")).error().code == ErrorCode::Refused);
    CHECK(has(shelf, at(1, 1), "a"));
}

TEST_CASE("a copy may come late for a sealed step, and only once") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    (void)seal(shelf, rank(0), at(1, 1), "a");
    (void)write(shelf, copy_of(1), at(1, 1), "b");
    CHECK(shelf.begin(copy_of(1), at(1, 1), one("b")).error().code == ErrorCode::Refused);
}

TEST_CASE("only the owner finishes a file, and with the size that it was begun with") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    REQUIRE(shelf.begin(rank(0), at(1, 1), one("a")).has_value());
    CHECK(shelf.finish(rank(1), at(1, 1), with_sum(one("a"))).has_error());
    CHECK(shelf.finish(rank(0), at(1, 2), with_sum(one("a"))).has_error());
    CHECK(shelf.finish(rank(0), at(1, 1), with_sum(one("a", 99))).has_error());
    CHECK(shelf.finish(rank(0), at(1, 1), one("a")).has_error());
    CHECK(shelf.list().empty());
    CHECK(shelf.finish(rank(0), at(1, 1), with_sum(one("a"))).has_value());
    REQUIRE(shelf.list().size() == 1);
    CHECK(shelf.list().front().files == with_sum(one("a")));
    CHECK_FALSE(shelf.list().front().is_sealed);
}

TEST_CASE("a seal forgets what is older, and keeps what was begun since") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    (void)seal(shelf, rank(0), at(1, 1), "a");
    (void)write(shelf, copy_of(5), at(1, 1), "c");
    (void)write(shelf, rank(0), at(1, 2), "a");
    (void)write(shelf, rank(1), at(1, 3), "b");
    REQUIRE(shelf.seal(Generation(1), at(1, 2)).has_value());
    CHECK_FALSE(has(shelf, at(1, 1), "a"));
    CHECK_FALSE(has(shelf, at(1, 1), "c"));
    CHECK(has(shelf, at(1, 2), "a"));
    CHECK(has(shelf, at(1, 3), "b"));
    REQUIRE(shelf.list().size() == 2);
    CHECK(shelf.list().front().is_sealed);
    CHECK_FALSE(shelf.list().back().is_sealed);
    CHECK(shelf.seal(Generation(1), at(1, 2)).has_value());
}

TEST_CASE("a later save of a step replaces the sealed one when it is sealed, and not before") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    const BufferId first = seal(shelf, rank(0), at(1, 7, 1), "a");
    const BufferId second = write(shelf, rank(0), at(1, 7, 2), "a");
    CHECK(second != first);
    CHECK(shelf.find(at(1, 7, 1), "a")->buffer == first);
    REQUIRE(shelf.begin(rank(1), at(1, 7, 2), one("b")).has_value());
    CHECK(shelf.seal(Generation(1), at(1, 7, 2)).has_error());
    REQUIRE(shelf.list().size() == 2);
    CHECK(shelf.list().front().is_sealed);
    shelf.abandon(rank(1));
    REQUIRE(shelf.seal(Generation(1), at(1, 7, 2)).has_value());
    CHECK_FALSE(has(shelf, at(1, 7, 1), "a"));
    CHECK(shelf.find(at(1, 7, 2), "a")->buffer == second);
    CHECK(shelf.seal(Generation(1), at(1, 7, 1)).has_error());
}

TEST_CASE("after a roll-back a later generation seals a lower step, which is the newest then") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    (void)seal(shelf, rank(0), at(1, 9), "a");
    REQUIRE(shelf.greet(Generation(2)).has_value());
    (void)seal(shelf, rank(0), at(2, 4), "a");
    CHECK_FALSE(has(shelf, at(1, 9), "a"));
    REQUIRE(shelf.list().size() == 1);
    CHECK(shelf.list().front().key.step == 4);
    CHECK(shelf.list().front().is_sealed);
}

TEST_CASE("a later generation may seal the step that it has resumed from") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    (void)seal(shelf, rank(0), at(1, 1), "a");
    (void)write(shelf, rank(0), at(1, 2), "a");
    (void)write(shelf, rank(1), at(1, 3), "b");
    REQUIRE(shelf.greet(Generation(2)).has_value());
    REQUIRE(shelf.seal(Generation(2), at(1, 2)).has_value());
    CHECK(has(shelf, at(1, 2), "a"));
    CHECK_FALSE(has(shelf, at(1, 1), "a"));
    CHECK_FALSE(has(shelf, at(1, 3), "b"));
    REQUIRE(shelf.begin(rank(0), at(2, 3), one("a")).has_value());
    CHECK(has(shelf, at(1, 2), "a"));
}

TEST_CASE("a step that is not whole here is not sealed, nor an older one than the sealed") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    (void)write(shelf, rank(1), at(1, 2), "b");
    REQUIRE(shelf.begin(rank(0), at(1, 2), one("a")).has_value());
    CHECK(shelf.seal(Generation(1), at(1, 2)).has_error());
    REQUIRE(shelf.finish(rank(0), at(1, 2), with_sum(one("a"))).has_value());
    CHECK(shelf.seal(Generation(1), at(1, 2)).has_value());
    CHECK(shelf.seal(Generation(1), at(1, 1)).has_error());
    CHECK(has(shelf, at(1, 2), "a"));
}

TEST_CASE("a worker's death leaves what it has written") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    (void)seal(shelf, rank(0), at(1, 1), "a");
    (void)write(shelf, rank(0), at(1, 2), "a");
    REQUIRE(shelf.begin(rank(0), at(1, 2), one("t")).has_value());
    REQUIRE(shelf.begin(rank(1), at(1, 2), one("b")).has_value());
    shelf.abandon(rank(0));
    CHECK(has(shelf, at(1, 1), "a"));
    CHECK(has(shelf, at(1, 2), "a"));
    CHECK(shelf.finish(rank(0), at(1, 2), with_sum(one("t"))).has_error());
    CHECK(shelf.finish(rank(1), at(1, 2), with_sum(one("b"))).has_value());
}

TEST_CASE("an earlier generation neither comes nor begins nor seals once a later one has come") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    (void)write(shelf, rank(0), at(1, 1), "a");
    REQUIRE(shelf.greet(Generation(2)).has_value());
    CHECK(shelf.greet(Generation(1)).error().code == ErrorCode::Refused);
    CHECK(shelf.begin(rank(0), at(1, 2), one("a")).error().code == ErrorCode::Refused);
    CHECK(shelf.begin(copy_of(3), at(1, 2), one("c")).error().code == ErrorCode::Refused);
    CHECK(shelf.seal(Generation(1), at(1, 1)).error().code == ErrorCode::Refused);
    CHECK(has(shelf, at(1, 1), "a"));
    CHECK(shelf.greet(Generation(2)).has_value());
}

TEST_CASE("a fetched file of an earlier generation is kept until the next begin") {
    CheckpointShelf shelf(kBytesMax, kFilesMax);
    REQUIRE(shelf.greet(Generation(2)).has_value());
    const ShelfOwner fetched{.kind = ShelfOwner::Kind::Fetched};
    (void)write(shelf, fetched, at(1, 5), "a");
    (void)write(shelf, fetched, at(1, 5), "b");
    CHECK(has(shelf, at(1, 5), "a"));
    REQUIRE(shelf.begin(rank(0), at(2, 6), one("a")).has_value());
    CHECK_FALSE(has(shelf, at(1, 5), "a"));
}
