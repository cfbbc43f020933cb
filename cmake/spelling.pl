#!/usr/bin/env perl
# spelling.pl: words of pages and comments that hunspell's dictionaries (en_US, en_GB) and cmake/words.txt do not have.
# Code in pages (`x`, blocks), names with _ . / : or digits, and links are left out. Prints each word once, with a place
# where it stands, and words of the list that nothing uses any more; exits with 1 where there are any.
use strict;
use warnings;

my $list = 'cmake/words.txt';
my %place;

# note FILE LINE TEXT: its words.
sub note {
  my ($file, $line, $text) = @_;
  $text =~ s/\S*[_.\/<>():=\[\]{}0-9#@\\+*]\S*/ /g;    # names and code
  $place{$1} //= "$file:$line" while $text =~ /(?<![\w'-])([A-Za-z][a-z]+(?:'[a-z]+)?)(?![\w'])/g;
}

for my $file (split /\n/, qx(git ls-files '*.md' '*.cpp' '*.cppm' '*.hpp' '*.h' '*.cu' '*.pl' '*.pm' '*.sh')) {
  next if $file =~ m{^tests/(?:reference|fuzz/corpus)/|plugin_template/};
  open my $in, '<', $file or next;    # a file that was removed and is not committed yet
  my $block = 0;
  while (my $text = <$in>) {
    if ($file =~ /\.md$/) {
      $block = !$block if $text =~ /^\s*```/;
      next if $block || $text =~ /^ {4}/;
      $text =~ s/`[^`]*`/ /g;
      $text =~ s/\]\([^)]*\)/]/g;
      $text =~ s/[\[\]().,:;!?*]+(?=\s|$)|(?<=\s)[\[(*]+|^[\[(*]+/ /g;
    } elsif ($file =~ /\.(?:pl|pm|sh)$/) {
      $text = $text =~ /^\s*#\s(.*)/ ? $1 : '';
      $text =~ s/[().,:;]+(?=\s|$)|(?<=\s)\(/ /g;
    } else {
      $text = $text =~ m{(?:^|\s)//+<?\s(.*)} ? $1 : '';
      $text =~ s/[().,:;]+(?=\s|$)|(?<=\s)\(|^\(/ /g;
    }
    note($file, $., $text);
  }
}

my %known;
{
  open my $in, '<', $list or die "$list: $!\n";
  while (<$in>) {
    s/\s*#.*//;
    $known{lc $_} = 0 for split;
  }
}
my @unknown;
{
  require File::Temp;
  my $words = File::Temp->new;
  print $words "$_\n" for sort keys %place;
  close $words;
  open my $out, '-|', 'hunspell', '-d', 'en_US,en_GB', '-l', "$words" or die "hunspell: $!\n";
  chomp(@unknown = <$out>);
  close $out or die "hunspell failed; its packages are hunspell, hunspell-en-us and hunspell-en-gb\n";
}
for my $word (keys %place) {    # other versions of the dictionaries have some of them
  for my $form (lc $word, lc($word =~ s/'s$//r)) {
    $known{$form} = 1 if exists $known{$form};
  }
}
my $findings = 0;
for my $word (grep { !exists $known{lc $_} && !exists $known{lc(s/'s$//r)} } @unknown) {
  print "$place{$word}: '$word' is in no dictionary: correct it, or add it to $list\n";
  ++$findings;
}
for my $word (sort grep { !$known{$_} } keys %known) {
  print "$list: nothing uses '$word' any more: remove it\n";
  ++$findings;
}
printf "%d words, %d findings\n", scalar(keys %place), $findings;
exit($findings ? 1 : 0);
