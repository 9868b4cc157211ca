#pragma once

#include "tests/support/daemon_stage.hpp"

/// The inputs of a large job, in order, each kind in a row of its own.
namespace ddprun::test {

/// Joins, a generation, the loss of a node, a generation with another one, and its success.
void play_job(Stage& stage);

/// Each node prepares; the first generation fails with much to say. At least 64 nodes.
void play_failure(Stage& stage);

/// Members of a generation come back to another daemon, within 2 s.
void play_return(Stage& stage, bool has_journal);

}  // namespace ddprun::test
