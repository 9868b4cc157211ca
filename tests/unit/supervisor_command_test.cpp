#include "agent/supervise/worker_command.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::agent {

TEST_CASE("the local rank is substituted as torchrun does it") {
    const auto with_seven = [](const char* text) {
        return substitute_local_rank(text, LocalRank(7));
    };
    CHECK(with_seven("${local_rank}") == "7");
    CHECK(with_seven("$local_rank") == "7");
    CHECK(with_seven("cuda:$local_rank-x") == "cuda:7-x");
    CHECK(with_seven("a$$b") == "a$b");
    CHECK(with_seven("$${local_rank}") == "${local_rank}");
    CHECK(with_seven("$local_ranks $LOCAL_RANK ${local_rank $HOME ${HOME}") ==
          "$local_ranks $LOCAL_RANK ${local_rank $HOME ${HOME}");
    CHECK(with_seven("$") == "$");
    CHECK(with_seven("5$ and $5") == "5$ and $5");
    CHECK(with_seven("").empty());
}

TEST_CASE("the executable itself is left alone") {
    CHECK(worker_command({"/opt/$local_rank", "--d=$local_rank"}, LocalRank(0)) ==
          std::vector<std::string>{"/opt/$local_rank", "--d=0"});
}

}  // namespace ddprun::agent
