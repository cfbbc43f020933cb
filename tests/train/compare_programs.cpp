// Programs of several ranks: what they must have alike is compared before they run, and what each
// rank has of its own is not.
#include <map>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.collective;
import tessera.ops;
import tessera.program;
import tessera.train;

using namespace tessera;

namespace {

Program program(int rank, const std::string& body) {
  return Program::parse("tessera program 2\nrank " + std::to_string(rank) + "\n" + body + "end\n");
}

/// The error that all ranks throw; "": none.
std::string compared(const std::vector<std::string>& bodies) {
  std::vector<std::string> errors(bodies.size());
  try {
    collective::run_threads(static_cast<int>(bodies.size()), [&](collective::World& world) {
      const auto rank = static_cast<std::size_t>(world.rank());
      const std::string& body = bodies[rank];
      try {
        if (body.empty()) {
          compare_programs(world, nullptr);
        } else {
          const Program own = program(world.rank(), body);
          compare_programs(world, &own);
        }
      } catch (const Error& error) {
        errors[rank] = error.what();
        errors[rank] += error.kind() == ErrorKind::input ? "" : " (no error of input)";
      }
    });
  } catch (const Error& error) {
    return error.what();
  }
  for (const std::string& error : errors) {
    CHECK(error == errors[0]);
  }
  return errors[0];
}

std::string reduced(const std::string& ranks, const std::string& rows = "4") {
  return "input %0: f32[" + rows + "] = x\nsection step\n  %1: f32[" + rows +
         "] = all_reduce(%0; op=sum, group=ranks " + ranks + ") @ forward in a.b\noutput %1 = y\n";
}

}  // namespace

TEST_CASE("ranks with equal communication are right, whatever else their programs have") {
  CHECK(compared({reduced("0 1"), reduced("0 1")}).empty());
  // Shards of 3 rows over two ranks, other numbers of tensors, other instructions between.
  const std::string gathered = "%1: f32[3, 2] = all_gather(%0; dim=0, extent=3, group=ranks 0 1)\n";
  CHECK(
      compared({"input %0: f32[2, 2] = x\nsection step\n  " + gathered,
                "input %0: f32[1, 2] = x\nsection step\n  %2: f32[1, 2] = exp(%0)\n  " + gathered})
          .empty());
  // Groups of their own, and groups of one rank.
  CHECK(compared({reduced("0 1"), reduced("0 1"), reduced("2 3", "8"), reduced("2 3", "8"),
                  reduced("4")})
            .empty());
  // What has no program (because its host reads values) is not compared.
  CHECK(compared({reduced("0 1"), ""}).empty());
  CHECK(compared({"", ""}).empty());
}

TEST_CASE("the first call that differs is named, with both instructions and their module") {
  CHECK(compared({reduced("0 1"), reduced("0 1", "5")}) ==
        "captured step: rank 0 and rank 1 have different programs: call 1 of the group 'ranks 0 1' "
        "is not the same; give all ranks the same config and plugins; changes "
        "must decide about communication from what all ranks have in common\n"
        "  rank 0: section 'step', instruction 1 (%1: f32[4] = all_reduce(%0; op=sum, "
        "group=ranks 0 1) @ forward in a.b)\n"
        "  rank 1: section 'step', instruction 1 (%1: f32[5] = all_reduce(%0; op=sum, "
        "group=ranks 0 1) @ forward in a.b)");
}

TEST_CASE("the guard and the operation that led to a call that differs are named") {
  const auto body = [](const std::string& call) {
    return "input %0: f32[4] = x\ninput %2: f32[1] = g\nsection step\n"
           "  host.guard(%2; skip, 0) @ forward in a\n"
           "  %1: f32[4] = " +
           call + "\noutput %1 = y\n";
  };
  const std::string error =
      compared({body("all_reduce(%0; op=sum, group=ranks 0 1) @ forward in a.b by full_tensor"),
                body("all_reduce(%0; op=max, group=ranks 0 1) @ forward in a.b by redistribute")});
  INFO(error);
  CHECK(
      error.find("group=ranks 0 1) @ forward in a.b by full_tensor), after guard 'skip' in module "
                 "'a' was 0\n") != std::string::npos);
  CHECK(error.find("group=ranks 0 1) @ forward in a.b by redistribute), after guard 'skip'") !=
        std::string::npos);
}

TEST_CASE("kinds, types, arguments, order and number of calls are compared in each group") {
  const auto differs = [](const std::string& one, const std::string& other, int call,
                          const std::string& group = "ranks 1 2 named b") {
    // Rank 0 has nothing to do with it.
    const std::string error = compared({reduced("0"), one, other});
    INFO(error);
    CHECK(error.find("rank 1 and rank 2 have different programs: call " + std::to_string(call) +
                     " of the group '" + group + "'") != std::string::npos);
  };
  const std::string head = "input %0: f32[4] = x\ninput %1: f32[4] = y\nsection step\n";
  const std::string sum = "  all_reduce_(%0; op=sum, group=ranks 1 2 named b)\n";
  const std::string most = "  all_reduce_(%0; op=max, group=ranks 1 2 named b)\n";
  const std::string others = "  all_reduce_(%0; op=sum, group=ranks 1 2 named c)\n";
  const auto listed = [&](const std::string& identity) {
    return "  all_reduce_coalesced_(%0, %1; op=sum, group=ranks 1 2 named b, identity=" + identity +
           ", step=1)\n  wait(%0)\n";
  };
  differs(head + sum, head + most, 1);
  differs(head + sum + most, head + most + sum, 1);
  differs(head + sum + sum, head + sum, 2);
  differs(head + sum, head, 1);
  differs(head + listed("7"), head + listed("8"), 1);
  differs(head + sum + others, head + sum + others + others, 2, "ranks 1 2 named c");
  const std::string more =
      "  %2: f32[8] = all_gather(%0; dim=0, extent=8, group=ranks 1 2 named b)\n";
  const std::string async =
      "  %2: f32[8] = all_gather_async(%0; dim=0, extent=8, group=ranks 1 2 named b)\n  wait(%2)\n";
  differs(head + sum + more, head + sum + async, 2);
  differs("input %0: f32[4] = x\nsection step\n" + sum,
          "input %0: bf16[4] = x\nsection step\n" + sum, 1);
}

TEST_CASE("messages are compared with those that the other rank sends or receives") {
  const std::string head = "input %0: f32[4] = x\ninput %1: f32[6] = y\nsection step\n";
  const auto send = [](const std::string& tensor, int to, int tag) {
    return "  send(" + tensor + "; peer=" + std::to_string(to) + ", tag=" + std::to_string(tag) +
           ", group=ranks 0 1 2)\n";
  };
  const auto receive = [](const std::string& tensor, int from, int tag) {
    return "  receive_(" + tensor + "; peer=" + std::to_string(from) +
           ", tag=" + std::to_string(tag) + ", group=ranks 0 1 2)\n";
  };
  // Rank 1 has other calls than its neighbours, and takes messages in an order of its own.
  const std::string zero = head + send("%0", 1, 0) + send("%1", 1, 1) + receive("%0", 1, 2);
  const std::string one =
      head + receive("%1", 0, 1) + receive("%0", 0, 0) + send("%0", 2, 5) + send("%0", 0, 2);
  const std::string two = head + receive("%0", 1, 5);
  CHECK(compared({zero, one, two}).empty());
  const auto differs = [&](const std::string& instead, int call, const std::string& group) {
    const std::string error = compared({zero, instead, two});
    INFO(error);
    CHECK(error.find("have different programs: call " + std::to_string(call) + " of the group '" +
                     group + " named messages'") != std::string::npos);
  };
  const std::string rest = send("%0", 2, 5) + send("%0", 0, 2);
  differs(head + receive("%1", 0, 1) + rest, 1, "ranks 0 1");  // one is not received
  differs(head + receive("%1", 0, 1) + receive("%0", 0, 3) + rest, 1, "ranks 0 1");
  differs(head + receive("%1", 0, 1) + receive("%1", 0, 0) + rest, 1, "ranks 0 1");
  differs(one + send("%0", 2, 6), 2, "ranks 1 2");  // nobody receives it
  differs(head + receive("%1", 0, 1) + receive("%0", 0, 0) + send("%0", 2, 5) +
              "  receive_(%0; peer=0, tag=2, group=ranks 0 1 2)\n",
          3, "ranks 0 1");
}
