// What transports have in common that make their own connections.
export module tessera.meeting;

export import :rank_meeting;  // meet_ranks: the ranks of a run find each other at TESSERA_MEET
export import :rank_links;    // RankLinks: proven connections between them, and who is lost
