"""Texts for comparisons of tokenizers: all scripts, emoji, white space, marks, digits, code, special tokens.

Characters are those that Unicode 8 has: the tables of the reference libraries are of different versions, and so are those of
the supported systems.
"""

import random
import unicodedata

SENTENCES = [
    "The quick brown fox jumps over the lazy dog; it's 7 o'clock, and they'll say they've seen it.",
    "I'M SURE YOU'LL SAY WE'RE DONE, don't you? He'd say: \"it's what it's\" (1,234.56 EUR).",
    "Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter en canoë au delà des îles.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. STRASSE, Straße, ẞ.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío, ¡añoraba a su querido cachorro!",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. Zażółć gęślą jaźń. Árvíztűrő tükörfúrógép.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Щ й ё Ї Є ґ",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΌΔΟΣ ὁδός ᾳ ᾼ Σίσυφος ΣΊΣΥΦΟΣ",
    "İstanbul'da ığdır IĞDIR i̇ ı I — Türkçe büyük İ.",
    "いろはにほへと ちりぬるを。カタカナと漢字、ｱｲｳ ﾊﾟﾋﾟ。東京都に住んでいます。",
    "我能吞下玻璃而不伤身体。繁體字：龍門飛甲，２０２３年１２月。〇一二三",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 한글 자모 ㄱㅏ 각",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ومغلف بجلد أزرق. ١٢٣ ﷺ لا",
    "דג סקרן שט בים מאוכזב ולפתע מצא לו חברה. שָׁלוֹם",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश। १२३ क्ष त्र ज्ञ",
    "ঊনিশে কার্তিক রাত্র সাড়ে আট ঘটিকায়। ১২৩ কোটি",
    "நான் கண்ணாடி சாப்பிடுவேன், அதனால் எனக்கு ஒரு கேடும் வராது. ௧௨௩",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ๑๒๓",
    "ကျွန်တော် မှန်စားနိုင်တယ်။ ខ្ញុំអាចញុំកញ្ចក់បាន ອັກສອນລາວ",
    "მე ვარ მინას ვჭამ. Կրնամ ապակի ուտել։ ამ ႠႡႢ",
    "አንድ ቋንቋ ብቻ በቂ አይደለም። ᏣᎳᎩ ꭰꭱ ᚠᚢᚦ ᐃᓄᒃᑎᑐᑦ",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪🇯🇵 ❤️ 🤷🏻‍♀️ ☕️ 1️⃣ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ©™ ♫",
    "def f(x: int) -> int:\n    return x ** 2  # comment\n\n\tif x != 0 and y[0] == {'a': 1}:\n",
    "int main(){std::cout<<\"hi\\n\";}//\r\n\r\n  for(;;){}\t\t\n",
    "https://example.com/a/b?c=d&e=%20#f user.name+tag@mail.example.org C:\\path\\file.txt",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β), 2H₂ + O₂ ⇌ 2H₂O, x² ½ ⅷ Ⅻ ①②③ ㎏ ﬁ ﬂ",
    "e\u0301 \u00e9 A\u030a \u212b \u1e9b\u0323 \ud55c \u1112\u1161\u11ab \u0344 q\u0307\u0323 \u0958",
    "zero\u200bwidth\u200cjoin\u200der \ufeffbom \u00a0nbsp \u202fnarrow \u3000wide \u2028line \u2029para \u0085next",
    "0 00 123 1234 12345 1234567890 3.14 1e-5 0xFF １２３ ٤٥٦ ໑໒ 𝟙𝟚 १२",
    "tabs\tand   spaces    \n\n\n newlines \r\n\r\n\r mixed \n \t \n   end   ",
    "--- === *** ___ ... !!! ??? ,,, ;;; ((())) [[[]]] {{{}}} <<<>>> ''' \"\"\" ``` ~~~ ^^^ §¶†‡•…‰",
    "\x00\x01\x02 nul \x07 bell \x1b[0m esc \x7f del \x9f",
    "Antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis Donaudampfschifffahrt",
    "", " ", "  ", "\n", "a", " a", "a ", "é", "\u0301", "▁", " ▁ ", "##a", "Ġ", "<0x41>", "</w>",
]

SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u2003", "\u0085", "\u180e", ""]

RANGES = [(0x20, 0x7F), (0xA0, 0x180), (0x180, 0x250), (0x300, 0x370), (0x370, 0x400), (0x400, 0x530), (0x530, 0x590),
          (0x590, 0x600), (0x600, 0x700), (0x900, 0x980), (0x980, 0xA00), (0xB80, 0xC00), (0xE00, 0xE80), (0x1000, 0x10A0),
          (0x10A0, 0x1100), (0x1100, 0x1200), (0x1200, 0x1380), (0x13A0, 0x1400), (0x1780, 0x1800), (0x1E00, 0x2000),
          (0x2000, 0x2070), (0x2070, 0x2150), (0x2150, 0x2190), (0x2190, 0x2600), (0x2600, 0x27C0), (0x3000, 0x3100),
          (0x3100, 0x3200), (0x3200, 0x3400), (0x4E00, 0x9FA6), (0xA640, 0xA800), (0xAC00, 0xD7A4), (0xF900, 0xFB00),
          (0xFB00, 0xFE00), (0xFE00, 0xFE70), (0xFF00, 0xFFF0), (0x10000, 0x10100), (0x10330, 0x10400), (0x1D400, 0x1D800),
          (0x1F100, 0x1F200), (0x1F300, 0x1F650), (0x1F680, 0x1F700), (0x20000, 0x20100), (0x2F800, 0x2FA1E)]


# Of these ranges, what is newer than Unicode 8.
NEWER = [(0x560, 0x560), (0x588, 0x588), (0x5EF, 0x5EF), (0x61D, 0x61D), (0x9FC, 0x9FE), (0x20BF, 0x20C0), (0x23FB, 0x23FF),
         (0x312E, 0x312F), (0x31BB, 0x31BF), (0x32FF, 0x32FF), (0xA7AE, 0xA7AF), (0xA7B8, 0xA7CA), (0xA7D0, 0xA7D9), (0xA7F2, 0xA7F6),
         (0xFBC2, 0xFBC2), (0xFD40, 0xFD4F), (0xFDCF, 0xFDCF), (0xFDFE, 0xFDFF), (0x1F10D, 0x1F10F), (0x1F12F, 0x1F12F),
         (0x1F16C, 0x1F16F), (0x1F19B, 0x1F1AD), (0x1F57A, 0x1F57A), (0x1F5A4, 0x1F5A4), (0x1F6D1, 0x1F6DF), (0x1F6F4, 0x1F6FC)]


def assigned(code):
    return unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co") and not any(a <= code <= b for a, b in NEWER)


POOLS = [[chr(c) for c in range(a, b) if assigned(c)] for a, b in RANGES]


def random_text(rng, specials):
    parts = []
    for _ in range(rng.randint(1, 9)):
        kind = rng.random()
        if kind < 0.25:
            words = rng.choice(SENTENCES[:33]).split(" ")
            start = rng.randrange(len(words))
            parts.append(" ".join(words[start:start + rng.randint(1, 5)]))
        elif kind < 0.55:
            pool = rng.choice(POOLS)
            parts.append("".join(rng.choice(pool) for _ in range(rng.randint(1, 8))))
        elif kind < 0.65:
            parts.append("".join(rng.choice("0123456789") for _ in range(rng.randint(1, 12))))
        elif kind < 0.75:
            parts.append("".join(rng.choice(rng.choice(POOLS)) for _ in range(rng.randint(1, 6))))
        elif kind < 0.82 and specials:
            parts.append(rng.choice(specials))
        elif kind < 0.9:
            parts.append(rng.choice(["'s", "'LL", "'Ve", "'t", "'RE", "n't", "'", "\u2019s", "'\u017f"]))
        else:
            parts.append(rng.choice(SPACES) * rng.randint(1, 4))
        if rng.random() < 0.6:
            parts.append(rng.choice(SPACES))
    return "".join(parts)


def texts(count, seed, specials=()):
    """`count` texts: the sentences, then random ones."""
    rng = random.Random(seed)
    out = SENTENCES[:count]
    while len(out) < count:
        out.append(random_text(rng, list(specials)))
    return out


def broken(count, seed):
    """Byte strings that are not UTF-8."""
    rng = random.Random(seed)
    out = [b"\xff", b"a\xc3", b"\xe2\x82", b"\xe2\x82b", b"\xf0\x9f\x98", b"\xf0\x9f\x98\xf0\x9f\x98\x80", b"\xc0\xaf", b"\xed\xa0\x80",
           b"\xf4\x90\x80\x80", b"ab\x80\x80cd", b" \xfe \xff "]
    while len(out) < count:
        data = bytearray(random_text(rng, []).encode())
        if not data:
            continue
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            if rng.random() < 0.5:
                del data[at]
            else:
                data[at:at] = bytes([rng.randrange(128, 256)])
            if not data:
                break
        try:
            bytes(data).decode()
        except UnicodeDecodeError:
            out.append(bytes(data))
    return out[:count]
