#pragma once

#include <string>

#include "rendezvous/core/coordinator.hpp"

/// What operators ask for. Each order that is taken is an event `operator` with who asked, is
/// durable before it is answered or anything of it is told, and may be given twice: the second time
/// it changes nothing, or sets the time anew. One that is not taken changes nothing.
namespace ddprun::rdzv {

struct Step;

/// Takes the order, or says why not; answers it. What it comes to is decided where the same is
/// decided without operators: leaving (membership), stopping, forming, quarantine.
void take_order(Step& step, const OrderGiven& given);
/// Nothing is done.
void refuse_order(Effects& out, const OrderGiven& given, OrderFault fault, std::string text);

}  // namespace ddprun::rdzv
