module tessera.collective:mirror;

import tessera.base;
import :bridge;
import :control;
import :region;
import :transport;

namespace tessera::collective {

struct Member;
struct Message;
struct Channel;

/// Writes what ranks of other machines publish into this machine's region. What one sender
/// publishes in one group becomes visible in its order, and only when its data is there.
class Mirror {
 public:
  Mirror(std::shared_ptr<Region> region, const Machines& machines, int rank);
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  /// A call, a result or a message: returns where its large parts belong.
  std::vector<MessageTransport::Part> arrive(int from, Topic topic, Reader& reader,
                                             std::uint64_t& token);
  void arrived(std::uint64_t token);
  /// Nothing more comes from this rank: it is marked when all that came has been applied.
  void ended(int rank);
  /// Applies what can be, and frees what is not read any more. Whether anything was applied.
  bool apply();
  /// The group that a head names, made when there is none yet.
  GroupBlock* group(Reader& reader);

 private:
  struct Block {
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
  };
  struct Arrival;
  struct Sender;

  Sender& sender(GroupBlock* group, int member, int from);
  std::vector<MessageTransport::Part> place(Arrival& arrival, Reader& reader);
  void read_message(Arrival& arrival, Reader& reader, std::vector<MessageTransport::Part>& parts);
  bool apply_calls(Sender& sender);
  bool apply_results(Sender& sender);
  bool apply_messages(Sender& sender);
  void reclaim(Sender& sender);
  /// How many calls all members on this machine are done with.
  std::uint64_t done_here(const Sender& sender) const;
  Block take(std::size_t bytes);
  void give_back(const Block& block);
  std::uint64_t allocate(std::size_t bytes);
  void lock();
  Channel& channel(GroupBlock& group, int from, int to);

  std::shared_ptr<Region> region_;
  Control& control_;
  const Machines& machines_;
  int rank_;
  int machine_;
  std::map<std::string, GroupBlock*> groups_;
  std::map<std::pair<GroupBlock*, int>, std::unique_ptr<Sender>> senders_;
  std::map<std::uint64_t, std::shared_ptr<Arrival>> open_;  // their data is on its way
  std::uint64_t next_token_ = 1;
  std::vector<int> ending_;
  std::vector<Block> free_;
};

/// Writes the name of a group: its ranks and its own name.
void put_group(Writer& writer, GroupBlock& group);

/// Parts of at least this size are received where they belong; smaller ones travel in the head.
constexpr std::size_t large_part = std::size_t{32} << 10;
constexpr std::size_t largest_part = std::size_t{512} << 20;

/// A range of bytes that a call publishes, relative to a base: the ranges of one base keep their
/// distances on the other machine.
struct PartRange {
  std::uint32_t base = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

}  // namespace tessera::collective
