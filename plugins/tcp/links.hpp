// The connections of the transport tcp, and the messages that wait to leave by them.
#pragma once

// Included after the imports of tessera's modules.

namespace tcp {

using tessera::collective::Checksum;
using tessera::collective::ChecksumSequence;
using tessera::collective::MessageTransport;
using tessera::collective::Proof;
using tessera::collective::ProvenLink;

inline constexpr std::size_t room_bytes = 128 << 10;  // for headers and heads that arrive

/// Begins each message. A message without a head is the last one: the rank has ended in order.
struct Header {
  std::uint64_t head_bytes = 0;
  std::uint64_t part_bytes = 0;
};

/// The checksum of one text or of two.
Checksum::Tag sealed(ChecksumSequence& seals, std::span<const std::byte> first,
                     std::span<const std::byte> second = {});

/// The bytes of a value.
template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

/// Says against the direction of a connection that the rank has ended in order.
inline constexpr std::string_view ended_in_order = "ended";

/// A message that leaves: its header, head, their checksum, the parts, theirs.
struct OutMessage {
  std::uint64_t token = 0;
  Header header{};
  std::vector<std::byte> head{};
  std::vector<MessageTransport::Part> parts{};
  Checksum::Tag head_tag{};
  Checksum::Tag parts_tag{};
  std::optional<Checksum> checksum{};  // of the parts, once the message has begun
  bool begun = false;
  std::size_t sealed = 0;   // bytes of the parts that are in the checksum
  std::size_t at_part = 0;  // and where they end
  std::size_t in_part = 0;
  std::size_t gone_parts = 0;  // that have left whole
  std::size_t gone_bytes = 0;  // of them
  std::size_t sent = 0;        // bytes of all

  std::size_t before_parts() const { return sizeof(header) + head.size() + head_tag.size(); }
  std::size_t all() const {
    return before_parts() + header.part_bytes + (header.part_bytes > 0 ? parts_tag.size() : 0);
  }
  bool is_sealed() const { return begun && sealed == header.part_bytes; }

  /// Adds so many bytes of the parts to their checksum. Messages begin in the order of the link.
  void seal(ChecksumSequence& seals, std::size_t bytes);

  /// What is sealed and has not left, as pieces for a system call.
  void put_pieces(std::vector<iovec>& pieces);
};

/// Messages to one rank.
struct OutLink {
  std::optional<Proof> proof{};      // that is not complete
  std::optional<ProvenLink> link{};  // then
  std::vector<std::byte> hello{};    // that has not left
  std::vector<std::byte> heard{};    // against the direction
  bool waits = false;                // for room to send
  bool ended = false;                // the other rank says that it has ended in order
  std::deque<OutMessage> queue{};

  bool open() const { return proof.has_value() || link.has_value(); }
  int descriptor() const {
    return proof ? proof->socket().descriptor() : link->socket.descriptor();
  }
};

/// Messages from one rank.
struct InLink {
  explicit InLink(ProvenLink proven) : link(std::move(proven)) {}
  ProvenLink link;
  int from = -1;  // -1: it has not said yet
  bool ended = false;
  std::vector<std::byte> room = std::vector<std::byte>(room_bytes);
  std::size_t begin = 0;  // of what has arrived in it
  std::size_t end = 0;
  std::vector<MessageTransport::Part> parts{};  // that are awaited, what has come cut off
  std::optional<Checksum> checksum{};           // of them; none: the message has none
  std::uint64_t token = 0;
  bool in_parts = false;
};

}  // namespace tcp
