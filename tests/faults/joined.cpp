// Ranks that another launcher starts: RANK, WORLD_SIZE and the job's name in the environment.
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "catch.hpp"
#include "program.hpp"
#include "skip.hpp"

using namespace faults;

namespace {

/// Rank `rank` of two, of a job of this test process and `name`.
std::map<std::string, std::string> rank_of_two(int rank, const std::string& name) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", "2"},
          {"TESSERA_TIMEOUT", "5"},
          {"TESSERA_JOB", "faults-" + name + "-" + std::to_string(getpid())}};
}

std::vector<std::string> two_ranks(const std::string& steps) {
  return {"train",
          "run.toml",
          "train.steps=" + steps,
          "mesh.axes=[shard]",
          "mesh.shape=[2]",
          "parallel=[{style=FSDP,axis=shard,on=[\".\"]}]"};
}

}  // namespace

TEST_CASE("ranks started by hand train together, with the losses of the program's own launch") {
  const RunFolder folder;
  Program second(folder, two_ranks("8"), {.environment = rank_of_two(1, "train")});
  Program first(folder, two_ranks("8"), {.environment = rank_of_two(0, "train")});
  const Result zero = first.wait(30);
  const Result one = second.wait(30);
  INFO(zero.out << zero.error << one.out << one.error);
  CHECK(zero.code == 0);
  CHECK(one.code == 0);
  CHECK(zero.error.empty());
  CHECK(one.out.empty());  // one of them speaks
  CHECK(steps_in(folder / "metrics.jsonl") == steps_to(8));
  const RunFolder own;
  CHECK(run(own, two_ranks("8")).code == 0);
  const auto losses = [](const RunFolder& run_folder) {
    std::string all;
    for (const std::string& line : lines_of(read_file(run_folder / "metrics.jsonl"))) {
      all += line.substr(0, line.find(",\"lr\"")) + "\n";
    }
    return all;
  };
  CHECK(losses(folder) == losses(own));
}

TEST_CASE("a joined launch is interrupted as the program's own is") {
  const RunFolder folder;
  Program second(folder, two_ranks("100000000"), {.environment = rank_of_two(1, "interrupt")});
  Program first(folder, two_ranks("100000000"), {.environment = rank_of_two(0, "interrupt")});
  REQUIRE(within(30, [&] { return steps_in(folder / "metrics.jsonl").size() >= 5; }));
  first.signal(SIGINT);
  second.signal(SIGINT);
  const Result zero = first.wait(10);
  INFO(zero.out << zero.error);
  CHECK(zero.code == 130);
  CHECK(second.wait(10).code == 130);
  CHECK(steps_in(folder / "metrics.jsonl") ==
        steps_to(step_after(zero.out, "interrupted after step ")));
  CHECK(checkpoints(folder / "checkpoints").size() == 1);
}

TEST_CASE("a joined rank that is killed ends the other") {
  for (const int killed : {0, 1}) {
    const RunFolder folder;
    const std::string job = "killed" + std::to_string(killed);
    Program second(folder, two_ranks("100000000"), {.environment = rank_of_two(1, job)});
    Program first(folder, two_ranks("100000000"), {.environment = rank_of_two(0, job)});
    REQUIRE(within(30, [&] { return steps_in(folder / "metrics.jsonl").size() >= 5; }));
    const auto shared_then = shared_memory();
    Program& victim = killed == 0 ? first : second;
    victim.signal(SIGKILL);
    CHECK(victim.wait(5).code == 128 + SIGKILL);
    const Result other = (killed == 0 ? second : first).wait(10);
    INFO(killed << ": " << other.error);
    CHECK(other.code == 1);
    CHECK(other.seconds < 6);
    CHECK(count(other.error, "error:") == 1);
    CHECK(other.error.find("rank " + std::to_string(killed) +
                           ", for which this rank waits, has died at step ") != std::string::npos);
    for (const std::string& name : shared_then) {
      CHECK(name.find(job + "-" + std::to_string(getpid())) == std::string::npos);
    }
  }
}

TEST_CASE("under mpirun one rank prints, whatever the launcher calls the ranks") {
  const auto is_one_report = [](const std::string& out) {
    INFO(out);
    CHECK(count(out, "parameters") >= 1);
    CHECK(count(out, "\ncheckpoint  ") == 1);
    CHECK(count(out, "A sample of 20 bytes") == 1);
    CHECK(count(out, "step 3/3") == 1);
  };
  std::vector<std::string> arguments = two_ranks("3");
  arguments.emplace_back("log.sample=20");
  {
    const RunFolder folder;
    const auto rank = [](int number) {
      return std::map<std::string, std::string>{
          {"OMPI_COMM_WORLD_RANK", std::to_string(number)},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"PMIX_NAMESPACE", "faults-" + std::to_string(getpid())},
          {"TESSERA_TIMEOUT", "20"}};
    };
    Program second(folder, arguments, {.environment = rank(1)});
    Program first(folder, arguments, {.environment = rank(0)});
    const Result zero = first.wait(30);
    const Result one = second.wait(30);
    INFO(zero.error << one.error);
    CHECK(zero.code == 0);
    CHECK(one.code == 0);
    CHECK(one.out.empty());
    is_one_report(zero.out);
  }
  if (!std::filesystem::exists("/usr/bin/mpirun")) {
    WARN("skipped: mpirun is not installed here");
    return;
  }
  const RunFolder folder;
  const Result result = run(folder, arguments,
                            {.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                             {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                             {"TESSERA_TIMEOUT", "20"}},
                             .launcher = {"/usr/bin/mpirun", "--oversubscribe", "-np", "2"}});
  INFO(result.error);
  CHECK(result.code == 0);
  is_one_report(result.out);
  CHECK(steps_in(folder / "metrics.jsonl") == steps_to(3));
}

TEST_CASE("ranks that have loaded different plugins are refused before they train") {
  const RunFolder folder;
  std::vector<std::string> other = two_ranks("3");
  other.back() = R"(parallel=[{style="Replicate",axis="shard",on=["."]}])";
  Program second(folder, other, {.environment = rank_of_two(1, "plugins")});
  Program first(folder, two_ranks("3"), {.environment = rank_of_two(0, "plugins")});
  const Result zero = first.wait(30);
  const Result one = second.wait(30);
  INFO(zero.error << one.error);
  CHECK(zero.code == 2);
  CHECK(one.code == 2);
  const std::string errors = zero.error + one.error;
  CHECK(count(errors, "error:") == 1);
  CHECK(errors.find("plugins: rank ") != std::string::npos);
  CHECK(steps_in(folder / "metrics.jsonl").empty());
}

TEST_CASE("an error before the launch is printed once, and no rank waits for a refused one") {
  struct Start {
    std::vector<std::string> zero;
    std::vector<std::string> one;
  };
  const std::vector<std::string> good = two_ranks("3");
  std::vector<std::string> bad = good;
  bad.emplace_back("model.dmi=8");
  for (const Start& start : {Start{bad, bad}, Start{bad, good}, Start{good, bad}}) {
    const RunFolder folder;
    const std::string job =
        "refused" + std::to_string(start.zero.size()) + std::to_string(start.one.size());
    auto environment = [&](int rank) {
      auto made = rank_of_two(rank, job);
      made["TESSERA_TIMEOUT"] = "60";
      return made;
    };
    Program second(folder, start.one, {.environment = environment(1)});
    Program first(folder, start.zero, {.environment = environment(0)});
    const Result zero = first.wait(20);
    const Result one = second.wait(20);
    INFO(job << "\n" << zero.error << "\n" << one.error);
    CHECK(zero.code == 2);
    CHECK(one.code == 2);
    CHECK(count(zero.error + one.error, "error:") == 1);
    CHECK((zero.error + one.error).find("model.dmi") != std::string::npos);
    CHECK(zero.seconds + one.seconds < 15);
    CHECK(checkpoints(folder / "checkpoints").empty());
  }
}

TEST_CASE("a run whose shared memory does not fit is refused before its ranks start") {
  const RunFolder folder;
  std::vector<std::string> arguments = two_ranks("3");
  // Some 31 million parameters; the memory of joined ranks is a file without a name.
  for (const char* large : {"model.dim=512", "model.ffn_dim=2048", "model.layers=8"}) {
    arguments.emplace_back(large);
  }
  const auto options = [](int rank) {
    return StartOptions{.environment = rank_of_two(rank, "room"), .file_size_limit = 64L << 20};
  };
  Program second(folder, arguments, options(1));
  Program first(folder, arguments, options(0));
  const Result zero = first.wait(30);
  const Result one = second.wait(30);
  const std::string errors = zero.error + one.error;
  INFO(errors);
  CHECK(zero.code == 2);
  CHECK(one.code == 2);
  CHECK(count(errors, "error:") == 1);
  CHECK(errors.find("launch: 2 ranks need 1") != std::string::npos);
  CHECK(errors.find(" of shared memory and there is room for 64.0 MiB") != std::string::npos);
  CHECK(steps_in(folder / "metrics.jsonl").empty());
}

TEST_CASE("a config.json that is not understood is refused once") {
  const RunFolder folder;
  REQUIRE(run(folder, {"train", "run.toml", "train.steps=1", "log.metrics="}).code == 0);
  const std::string checkpoint = checkpoints(folder / "checkpoints").back();
  REQUIRE(
      run(folder, {"checkpoint", "export", "checkpoints/" + checkpoint, "--to", "model"}).code ==
      0);
  std::string json = read_file(folder / "model/config.json");
  folder.write("model/config.json", json.replace(json.find('{'), 1, "{\"my_own_key\": 1,"));
  std::vector<std::string> arguments = {"train",
                                        "from.toml",
                                        "mesh.axes=[shard]",
                                        "mesh.shape=[2]",
                                        "parallel=[{style=FSDP,axis=shard,on=[\".\"]}]",
                                        "checkpoint.folder=continued"};
  folder.write("from.toml",
               "[model]\nfrom = \"model\"\n[data]\ntext = [\"text.txt\"]\nseq_len = 16\n"
               "[train]\nsteps = 1\nbatch = 4\n");
  Program second(folder, arguments, {.environment = rank_of_two(1, "unknown")});
  Program first(folder, arguments, {.environment = rank_of_two(0, "unknown")});
  const Result zero = first.wait(30);
  const Result one = second.wait(30);
  INFO(zero.error << "\n" << one.error);
  CHECK(zero.code == 2);
  CHECK(one.code == 2);
  CHECK(count(zero.error, "config.json: my_own_key: not understood") == 1);
  CHECK(one.error.empty());
}

TEST_CASE("a second machine of a Slurm step is refused at once") {
  const RunFolder folder;
  std::vector<std::string> arguments = two_ranks("3");
  arguments.emplace_back("mesh.transport=shm");
  const Result result = run(folder, arguments,
                            {.environment = {{"SLURM_PROCID", "1"},
                                             {"SLURM_LOCALID", "0"},
                                             {"SLURM_NTASKS", "2"},
                                             {"SLURM_NNODES", "2"},
                                             {"SLURM_NODEID", "1"},
                                             {"SLURM_JOB_ID", "77"},
                                             {"SLURM_STEP_ID", "0"}}});
  INFO(result.error);
  CHECK(result.code == 2);
  CHECK(result.seconds < 20);
  CHECK(result.error.find("must be on one machine") != std::string::npos);
  CHECK(result.error.find("Slurm started 2 ranks on 2 machines") != std::string::npos);
}

TEST_CASE("launches that do not fit are refused") {
  const RunFolder folder;
  const auto before = folder.listing();
  const auto refuses = [&](std::map<std::string, std::string> environment,
                           const std::vector<std::string>& words) {
    std::vector<std::string> arguments = two_ranks("3");
    arguments.emplace_back("mesh.transport=shm");
    const Result result = run(folder, arguments, {.environment = std::move(environment)});
    INFO(result.error);
    CHECK(result.code == 2);
    CHECK(count(result.error, "error:") == 1);
    for (const std::string& word : words) {
      INFO("expected: " << word);
      CHECK(result.error.find(word) != std::string::npos);
    }
    CHECK(folder.listing() == before);
  };
  auto other_machine = rank_of_two(0, "local");
  other_machine["LOCAL_WORLD_SIZE"] = "1";
  refuses(other_machine, {"WORLD_SIZE is 2", "LOCAL_WORLD_SIZE is 1", "one machine"});
  auto outside = rank_of_two(2, "outside");
  refuses(outside, {"RANK", "WORLD_SIZE", "got 2 and 2"});
  auto no_number = rank_of_two(0, "number");
  no_number["RANK"] = "first";
  refuses(no_number, {"RANK", "first"});
  auto too_many = rank_of_two(0, "many");
  too_many["WORLD_SIZE"] = "3";
  refuses(too_many, {"WORLD_SIZE is 3", "has 2 ranks", "mesh"});
  refuses({{"TESSERA_TIMEOUT", "soon"}}, {"TESSERA_TIMEOUT", "soon"});
}

TEST_CASE("where another user holds the name of a job, every rank says so", "[.root]") {
  if (geteuid() != 0) {
    tessera::testing::skip("only root can be another user");
    return;
  }
  const std::string job = "taken-" + std::to_string(getpid());
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t other = fork();
  if (other == 0) {  // listens where the ranks of root would meet
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string name = "tessera-0-" + job;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    const bool good = setuid(12345) == 0 &&
                      bind(socket, reinterpret_cast<const sockaddr*>(&address), bytes) == 0 &&
                      listen(socket, 8) == 0 && write(ready[1], "r", 1) == 1;
    if (good) {
      pause();
    }
    _exit(1);
  }
  close(ready[1]);
  char is_ready = 0;
  const bool listens = read(ready[0], &is_ready, 1) == 1;
  close(ready[0]);
  const RunFolder folder;
  auto environment = [&](int rank) {
    auto made = rank_of_two(rank, "");
    made["TESSERA_JOB"] = job;
    return made;
  };
  Program second(folder, two_ranks("3"), {.environment = environment(1)});
  Program first(folder, two_ranks("3"), {.environment = environment(0)});
  const Result zero = first.wait(20);
  const Result one = second.wait(20);
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
  REQUIRE(listens);
  for (const Result& rank : {zero, one}) {
    INFO(zero.error << "\n" << one.error);
    CHECK(rank.code == 2);
    CHECK(rank.error == "error: launch: another user has the name of the job '" + job +
                            "'; set TESSERA_JOB to another one\n");
  }
}

TEST_CASE("a transport that does not fit is refused") {
  const RunFolder folder;
  struct Refused {
    const char* transport;
    const char* text;
    std::map<std::string, std::string> environment;
  };
  const std::string unknown = "mesh.transport: there is no transport 'mpx' (expected one of auto, ";
  for (const Refused& refused :
       {Refused{"mpx", unknown.c_str(), {}}, Refused{"mpx", unknown.c_str(), rank_of_two(0, "mpx")},
        Refused{"loopback", "mesh.transport: there is no transport 'loopback'", {}}}) {
    std::vector<std::string> arguments = two_ranks("3");
    arguments.push_back(std::string("mesh.transport=") + refused.transport);
    const Result result = run(folder, arguments, {.environment = refused.environment});
    INFO(result.error);
    CHECK(result.code == 2);
    CHECK(count(result.error, "error:") == 1);
    CHECK(result.error.find(refused.text) != std::string::npos);
  }
}

TEST_CASE("a rank that waits for others in vain ends by the time limit") {
  const RunFolder folder;
  for (const int rank : {0, 1}) {
    auto environment = rank_of_two(rank, "alone" + std::to_string(rank));
    environment["TESSERA_TIMEOUT"] = "1.5";
    const Result result = run(folder, two_ranks("3"), {.environment = environment});
    INFO(result.error);
    CHECK(result.code == 1);
    CHECK(result.seconds < 10);
    CHECK(result.error.find("rank " + std::to_string(1 - rank) + " did not join within 1.5 s") !=
          std::string::npos);
    CHECK(result.error.find("are all ranks started") != std::string::npos);
  }
}
