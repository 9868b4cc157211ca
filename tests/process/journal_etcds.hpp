#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/wire/endpoint.hpp"
#include "tests/support/cluster.hpp"

namespace ddprun::rdzv::test {

/// True if etcd is installed; says so aloud if not.
[[nodiscard]] bool has_etcd();

/// Real etcds in one cluster, on free ports of 127.0.0.1, with their own folders: nothing is shared
/// with an etcd that the machine may run. They die with the test.
class Etcds {
public:
    /// With further `flags` of etcd.
    explicit Etcds(std::size_t count, std::vector<std::string> flags = {});
    ~Etcds();
    Etcds(const Etcds&) = delete;
    Etcds& operator=(const Etcds&) = delete;

    [[nodiscard]] std::vector<Endpoint> endpoints() const;
    /// Which one leads the others.
    [[nodiscard]] std::size_t leader() const;
    void kill(std::size_t index);
    void pause(std::size_t index);
    void resume(std::size_t index);
    /// One that was killed, with what it had stored.
    void restart(std::size_t index);
    /// Runs etcdctl against all and returns what it prints.
    [[nodiscard]] std::string control(const std::vector<std::string>& arguments) const;
    /// Writes keys of another client until etcd has no room for any more, and calls `meanwhile`
    /// after each: a leader that is to lead on renews its lease there.
    void fill(const std::function<void()>& meanwhile = [] {}) const;
    /// Deletes them, and lets etcd take writes again.
    void make_room() const;

private:
    struct Member {
        Endpoint client;
        Endpoint peer;
        int pid = -1;
    };

    void spawn(std::size_t index);
    void wait_until_healthy() const;

    ddprun::test::TempDir folder_;
    const std::vector<std::string> flags_;
    std::vector<Member> members_;
};

}  // namespace ddprun::rdzv::test
