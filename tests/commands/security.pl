#!/usr/bin/env perl
# Whether each test that docs/security.md names exists: a promise without a test is none.
#
#   security.pl REPOSITORY BUILD
#
# `PROGRAM` "case" is a case of a test's program; a name of ctest stands alone, as `fuzz`, at the end of a row.
use strict;
use warnings;

my ($repository, $build) = @ARGV;
die "usage: security.pl REPOSITORY BUILD\n" unless defined $build && @ARGV == 2;

my %names = map { /^\s*Test\s+#\d+: (\S+)/ ? ($1 => 1) : () } qx(ctest --test-dir "$build" -N 2>/dev/null);
my (@wrong, $promises);

sub has_case {
  my ($program, $case) = @_;
  (my $filter = $case) =~ s/([,\[\]\\])/\\$1/g;
  my $listed = -x "$build/bin/$program" ? qx("$build/bin/$program" "$filter" --list-tests 2>&1) : '';
  return $listed =~ /^1 (?:matching )?test case/m;
}

open my $page, '<', "$repository/docs/security.md" or die "docs/security.md: $!\n";
while (<$page>) {
  next unless /^\| .* \| (`.*)\|$/ && ++$promises;
  my $tests = $1;
  while ($tests =~ s/`(test_\w+)` "([^"]+)"//) {
    push @wrong, "$1 has no case \"$2\"" unless has_case($1, $2);
  }
  while ($tests =~ /(?:^|; )\s*`(\w+)`/g) {
    push @wrong, "ctest has no test '$1'" unless $names{$1} || $1 =~ /^test_/;
  }
}
push @wrong, 'the page has fewer rows with tests than it had (expected 20 or more)' if ($promises // 0) < 20;
print "docs/security.md: $_\n" for @wrong;
exit(@wrong ? 1 : 0);
