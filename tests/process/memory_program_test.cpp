// ddprun-memory as ddprun starts it, asked by clients in place of workers. The programs and the
// clients are real; only the loop of ddprun runs when a test needs it.

#include "agent/helpers/memory_program.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/process/memory_node.hpp"
#include "tests/support/catch.hpp"
#include "worker_runtime/memory/protocol.hpp"

using namespace ddprun;
using agent::MemoryOptions;
using namespace ddprun::test;
using worker::MemoryReply;
using worker::MemoryRequest;
using worker::MemoryVerb;

TEST_CASE("a checkpoint that is written and sealed outlives its workers") {
    const Node node;
    {
        Client worker(node, 0);
        (void)worker.write(5, "model.safetensors", "weights");
        (void)worker.write(5, "manifest.json", "{}");
        worker.seal(5);
    }
    Client next(node, 3, 2);
    const auto steps = next.list();
    REQUIRE(steps.size() == 1);
    CHECK(steps[0].is_sealed);
    CHECK(steps[0].key.step == 5);
    CHECK(steps[0].key.generation == Generation(1));
    CHECK(steps[0].files ==
          std::vector{file_of("manifest.json", "{}"), file_of("model.safetensors", "weights")});
    CHECK(next.read(5, "model.safetensors") == "weights");
    CHECK(next.endpoint().empty());
}

TEST_CASE("a worker that dies while it writes leaves what it had written before") {
    const Node node;
    {
        Client worker(node, 0);
        (void)worker.write(1, "old", "1");
        worker.seal(1);
        (void)worker.write(2, "done", "2");
        worker.begin(2, "torn", "3");
    }
    Client next(node, 0, 2);
    const auto steps = next.list();
    REQUIRE(steps.size() == 2);
    CHECK(steps[0].is_sealed);
    CHECK_FALSE(steps[1].is_sealed);
    CHECK(steps[1].files == std::vector{file_of("done", "2")});
    CHECK_FALSE(next.read(2, "torn").has_value());
}

TEST_CASE("a reader cannot write, and no reader sees another step's bytes") {
    const Node node;
    Client worker(node, 0);
    (void)worker.write(1, "model", "first!");
    worker.seal(1);
    Client reader(node, 1);
    REQUIRE(reader.read(1, "model") == "first!");
    const int descriptor = reader.files()[0].get();
    CHECK(::pwrite(descriptor, "x", 1, 0) < 0);
    CHECK(::mmap(nullptr, 1, PROT_WRITE, MAP_SHARED, descriptor, 0) == MAP_FAILED);
    for (std::int64_t step = 2; step < 5; ++step) {
        (void)worker.write(step, "model", "later!");
        worker.seal(step);
    }
    std::string content(6, ' ');
    REQUIRE(::pread(descriptor, content.data(), content.size(), 0) == 6);
    CHECK(content == "first!");
}

TEST_CASE("the memory of a file has its size, whatever a worker does") {
    const Node node;
    Client worker(node, 0);
    worker.begin(1, "model", "weights");
    CHECK(::ftruncate(worker.files()[0].get(), 1) != 0);
    CHECK(::ftruncate(worker.files()[0].get(), 100) != 0);
}

TEST_CASE("the same memory serves every other step") {
    const Node node;
    Client worker(node, 0);
    std::vector<ino_t> places;
    for (std::int64_t step = 1; step < 5; ++step) {
        worker.begin(step, "model", "weights");
        struct stat found {};
        REQUIRE(::fstat(worker.files()[0].get(), &found) == 0);
        places.push_back(found.st_ino);
        (void)worker.finish(step, "model", "weights");
        worker.seal(step);
    }
    CHECK(places[0] != places[1]);
    CHECK(places[0] == places[2]);
    CHECK(places[1] == places[3]);
}

TEST_CASE("a begin past the bound is refused, and the sealed step stays") {
    const Node node;
    Client worker(node, 0);
    (void)worker.write(1, "model", "weights");
    worker.seal(1);
    MemoryRequest large;
    large.verb = MemoryVerb::Begin;
    large.key.step = 2;
    large.files = {{.name = "model", .size = kNodeBytesMax, .xxh3_128 = {}}};
    const MemoryReply refused = worker.try_to(large);
    REQUIRE(refused.error.has_value());
    CHECK(refused.error->code == ErrorCode::LimitExceeded);
    CHECK(worker.read(1, "model") == "weights");
}

TEST_CASE("requests that are none are refused, and the worker may go on") {
    const Node node;
    Client stranger(node);
    MemoryRequest list;
    list.verb = MemoryVerb::List;
    CHECK(stranger.try_to(list).error->code == ErrorCode::BadMessage);
    stranger.send("no JSON");
    CHECK(stranger.receive().error->code == ErrorCode::BadMessage);
    CHECK_FALSE(stranger.try_to(MemoryRequest()).error.has_value());
    CHECK(stranger.try_to(MemoryRequest()).error->code == ErrorCode::BadMessage);
    MemoryRequest empty;
    empty.verb = MemoryVerb::Begin;
    CHECK(stranger.try_to(empty).error->code == ErrorCode::BadMessage);
    empty.verb = MemoryVerb::Open;
    CHECK(stranger.try_to(empty).error->code == ErrorCode::BadMessage);
    empty.verb = MemoryVerb::Fetch;
    CHECK(stranger.try_to(empty).error->code == ErrorCode::BadMessage);
    empty.files = {file_of("a", "b")};
    empty.endpoint = "127.0.0.1:1";
    CHECK(stranger.try_to(empty).error->code == ErrorCode::Refused);
    CHECK_FALSE(stranger.try_to(list).error.has_value());
}

TEST_CASE("a worker of an earlier generation is refused once a later one has come") {
    const Node node;
    Client old(node, 0, 1);
    Client young(node, 0, 2);
    MemoryRequest begin;
    begin.verb = MemoryVerb::Begin;
    begin.files = {{.name = "a", .size = 1, .xxh3_128 = {}}};
    CHECK(old.try_to(begin).error->code == ErrorCode::Refused);
    CHECK_FALSE(young.try_to(begin).error.has_value());
}

TEST_CASE("when the program has died no worker waits, and the next generation has a new one") {
    Node node;
    Client worker(node, 0);
    node.kill();
    CHECK(worker.is_closed());
    CHECK_FALSE(connect_to(node.socket).is_open());
    REQUIRE(node.lines.size() == 1);
    CHECK(node.lines[0].find("ddprun-memory was killed by SIGKILL") != std::string::npos);
    node.begin();
    Client next(node, 0, 2);
    CHECK(next.list().empty());
}

TEST_CASE("a node of a job with TLS needs no certificate if it has no partner") {
    const Node node({.bytes_max = kNodeBytesMax, .tls = {.ca = "/no/ca.pem"}});
    Client worker(node, 0);
    (void)worker.write(7, "model.safetensors", "weights");
    CHECK(worker.list().size() == 1);
}

TEST_CASE("the program ends with ddprun") {
    Node node;
    Client worker(node, 0);
    node.program.stop();
    CHECK(worker.is_closed());
}

TEST_CASE("the secret is neither in the arguments nor in the environment of the program") {
    rdzv::JobSecret::Bytes bytes{};
    bytes.fill(0xab);
    const Node node(
        MemoryOptions{.bytes_max = kNodeBytesMax, .secret = rdzv::JobSecret(bytes, "a file")},
        true);
    Client worker(node, 0);  // it has its settings now
    for (const char* const file : {"cmdline", "environ"}) {
        const std::string path = fmt::format("/proc/{}/{}", node.pid, file);
        const UniqueFd shown(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        REQUIRE(shown.is_open());
        std::string text(1 << 20, '\0');
        const ssize_t size = ::read(shown.get(), text.data(), text.size());
        REQUIRE(size > 0);
        text.resize(static_cast<std::size_t>(size));
        CHECK(text.find("abababab") == std::string::npos);
        CHECK(text.find("\xab\xab\xab\xab") == std::string::npos);
    }
}

// ------------------------------------------------------------------------------------- partners

namespace {

MemoryRequest fetch_of(std::int64_t step, const std::string& name, const std::string& content,
                       const std::string& endpoint) {
    MemoryRequest request;
    request.verb = MemoryVerb::Fetch;
    request.key.generation = Generation(1);
    request.key.step = step;
    request.files = {file_of(name, content)};
    request.endpoint = endpoint;
    return request;
}

}  // namespace

TEST_CASE("a copy outlives the node that wrote it, and a third node fetches it") {
    Node first(with_secret(1), true);
    const Node second(with_secret(1), true);
    const Node third(with_secret(1), true);
    const std::string content = large_content();
    Client partner(second, 4);
    {
        Client worker(first, 0);
        REQUIRE_FALSE(worker.endpoint().empty());
        worker.name_partner(partner.endpoint());
        CHECK(worker.write(7, "model", content).note.empty());
        CHECK(worker.write(7, "empty", "").note.empty());
        CHECK(worker.write(7, "manifest.json", "{}").note.empty());
        worker.seal(7);
    }
    first.kill();
    partner.seal(7);
    CHECK(partner.read(7, "model") == content);
    CHECK(partner.read(7, "empty") == "");
    Client replacement(third, 0, 2);
    replacement.ask(fetch_of(7, "model", content, partner.endpoint()));
    CHECK(replacement.read(7, "model") == content);
    // Here already: nobody is asked.
    replacement.ask(fetch_of(7, "model", content, "127.0.0.1:1"));
}

TEST_CASE("a partner has both saves of a step until the second one counts") {
    const Node first(with_secret(1), true);
    const Node second(with_secret(1), true);
    Client worker(first, 0);
    Client partner(second, 4);
    worker.name_partner(partner.endpoint());
    CHECK(worker.write(7, "model", "weights").note.empty());
    worker.seal(7);
    partner.seal(7);
    worker.count_saves(1);
    partner.count_saves(1);
    CHECK(worker.write(7, "model", "later ones").note.empty());
    CHECK(partner.read(7, "model") == "later ones");
    partner.count_saves(0);
    CHECK(partner.read(7, "model") == "weights");
    partner.count_saves(1);
    partner.seal(7);
    CHECK(partner.read(7, "model") == "later ones");
    partner.count_saves(0);
    CHECK_FALSE(partner.read(7, "model").has_value());
}

TEST_CASE("two partners write the same manifest, and neither is in the other's way") {
    const Node first(with_secret(1), true);
    const Node second(with_secret(1), true);
    Client left(first, 0);
    Client right(second, 1);
    left.name_partner(right.endpoint());
    right.name_partner(left.endpoint());
    CHECK(left.write(7, "model", "weights").note.empty());
    CHECK(left.write(7, "manifest.json", "{}").note.empty());
    CHECK(right.write(7, "manifest.json", "{}").note.empty());
    left.seal(7);
    right.seal(7);
    CHECK(right.read(7, "model") == "weights");
    CHECK(right.read(7, "manifest.json") == "{}");
}

TEST_CASE("many ranks have their files copied at the same time") {
    const Node first(with_secret(1), true);
    const Node second(with_secret(1), true);
    Client partner(second, 9);
    const std::string content = large_content();
    std::vector<std::unique_ptr<Client>> workers;
    for (int rank = 0; rank < 4; ++rank) {
        workers.push_back(std::make_unique<Client>(first, rank));
        workers.back()->name_partner(partner.endpoint());
        workers.back()->begin(1, fmt::format("model-{}", rank), content);
    }
    for (int rank = 0; rank < 4; ++rank) {
        MemoryRequest written;
        written.verb = MemoryVerb::Written;
        written.key.step = 1;
        written.files = {file_of(fmt::format("model-{}", rank), content)};
        workers[static_cast<std::size_t>(rank)]->send(encode(written));
    }
    for (int rank = 0; rank < 4; ++rank) {
        const MemoryReply reply = workers[static_cast<std::size_t>(rank)]->receive();
        CHECK_FALSE(reply.error.has_value());
        CHECK(reply.note.empty());
        CHECK(partner.read(1, fmt::format("model-{}", rank)) == content);
    }
}

TEST_CASE("a program with another secret gets and gives nothing") {
    const Node ours(with_secret(1), true);
    const Node other(with_secret(2), true);
    Client stranger(other, 0);
    Client worker(ours, 0);
    worker.name_partner(stranger.endpoint());
    const MemoryReply written = worker.write(1, "model", "weights");
    CHECK(written.note.find("its secret is not that of this node") != std::string::npos);
    CHECK(worker.read(1, "model") == "weights");
    CHECK(stranger.list().empty());
    const MemoryReply refused = stranger.try_to(fetch_of(1, "model", "weights", worker.endpoint()));
    REQUIRE(refused.error.has_value());
    CHECK(refused.error->code == ErrorCode::ConnectionLost);
}

TEST_CASE("a partner that is not there costs a note, and the step counts") {
    const Node node(with_secret(1), true);
    Node gone(with_secret(1), true);
    std::string endpoint;
    {
        Client partner(gone, 1);
        endpoint = partner.endpoint();
    }
    gone.kill();
    Client worker(node, 0);
    for (const std::string& partner : {endpoint, std::string("no endpoint")}) {
        worker.name_partner(partner);
        CHECK(worker.write(1, "model", "weights").note.find("has no copy") != std::string::npos);
    }
    worker.seal(1);
    CHECK(worker.list().front().is_sealed);
}

TEST_CASE("a partner without room has no copy, and says why") {
    const Node node(with_secret(1), true);
    MemoryOptions little = with_secret(1);
    little.bytes_max = 3;
    const Node full(little, true);
    const Client partner(full, 1);
    Client worker(node, 0);
    worker.name_partner(partner.endpoint());
    CHECK(worker.write(1, "model", "weights").note.find("--memory-checkpoints") !=
          std::string::npos);
}

TEST_CASE("a partner that dies while it copies costs a note, and a new one is used at once") {
    const Node node(with_secret(1), true);
    Node second(with_secret(1), true);
    Client worker(node, 0);
    {
        const Client partner(second, 1);
        worker.name_partner(partner.endpoint());
    }
    // Stopped, it takes the connection and answers nothing: then it is killed with the copy begun.
    worker.begin(1, "model", large_content());
    REQUIRE(::kill(second.pid, SIGSTOP) == 0);
    MemoryRequest written;
    written.verb = MemoryVerb::Written;
    written.key.step = 1;
    written.files = {file_of("model", large_content())};
    worker.send(encode(written));
    second.kill();
    const MemoryReply reply = worker.receive();
    CHECK_FALSE(reply.error.has_value());
    CHECK(reply.note.find("has no copy") != std::string::npos);
    second.begin();
    Client again(second, 1);
    worker.name_partner(again.endpoint());
    CHECK(worker.write(1, "training", "moments").note.empty());
}

TEST_CASE("what is not there, or has another checksum, is not fetched") {
    const Node first(with_secret(1), true);
    const Node second(with_secret(1), true);
    Client worker(first, 0);
    (void)worker.write(1, "model", "weights");
    Client reader(second, 0);
    CHECK(reader.try_to(fetch_of(2, "model", "weights", worker.endpoint())).error->code ==
          ErrorCode::NotFound);
    CHECK(reader.try_to(fetch_of(1, "model", "Weights", worker.endpoint())).error->code ==
          ErrorCode::BadMessage);
    CHECK(reader.try_to(fetch_of(1, "model", "weights!", worker.endpoint())).error->code ==
          ErrorCode::NotFound);
    CHECK(reader.list().empty());
    reader.ask(fetch_of(1, "model", "weights", worker.endpoint()));
    CHECK(reader.read(1, "model") == "weights");
}

TEST_CASE("workers of one node that fetch the same file all get it") {
    const Node first(with_secret(1), true);
    const Node second(with_secret(1), true);
    const std::string content = large_content();
    Client worker(first, 0);
    (void)worker.write(1, "model", content);
    Client left(second, 0);
    Client right(second, 1);
    left.send(encode(fetch_of(1, "model", content, worker.endpoint())));
    right.send(encode(fetch_of(1, "model", content, worker.endpoint())));
    CHECK_FALSE(left.receive().error.has_value());
    CHECK_FALSE(right.receive().error.has_value());
    CHECK(right.read(1, "model") == content);
}
