module tessera.machines:mirror;

import tessera.base;
import tessera.ranks;
import :bridge;
import :transport;
import :wire;

namespace tessera::collective {

/// A call as another machine tells it. Error: it is of no kind.
PackedCall get_call(Reader& reader);

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

}  // namespace tessera::collective
