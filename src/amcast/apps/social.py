"""A social network: users follow each other, post, and read what those whom they follow have posted.

Source: Coelho, Schiper, Pedone, "Fast atomic multicast" (2017), paper 003, section 5.3: a post is multicast to all
groups that contain followers of its author, which makes reading a timeline an operation of one group.

    follow      the groups of both users; the group of the followed one gives its last posts at a `yield`
    unfollow    the groups of both users
    post        the group of the author and those of the followers that the caller names. The author's group votes
                whether these are all followers: somebody may have followed meanwhile. Then nobody posts, and the caller
                asks for the followers again
    timeline    the group of the reader; read without ordering

Users are named `user-0` to `user-9999`; `amcast/data/social_users.txt` says in which of 16 partitions each one is, and
partition p is that of group p modulo the number of groups. Other names are placed by their hash.
"""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, Final

from amcast.services.declaration import At, Key, Service, command, query
from amcast.workloads.tables import social_users

PREFIX: Final = "user-"
KEPT: Final = 20
"""Posts of an author that a group keeps."""

USERS: Final = 8
"""Users among whom `work` draws."""
STEPS: Final = 2

Post = tuple[str, int, str]
"""The author, the number of the post among the author's, and the text."""


class SocialNetwork(Service):
    """The users of one group, and the posts of everybody whom they follow."""

    def __init__(self, group: str) -> None:
        self.followed: dict[str, list[str]] = {}
        """By user of this group: whom the user follows, sorted."""
        self.followers: dict[str, list[str]] = {}
        """By user of this group: who follows the user, sorted."""
        self.counts: dict[str, int] = {}
        """By user of this group: how often the user has posted."""
        self.posts: list[Post] = []
        """In the order of the group: those of its users, and of users whom they follow."""

    @classmethod
    def partition(cls, key: str, groups: Sequence[str]) -> str:
        """The group of a user: that of the user's partition in the graph."""
        number = key.removeprefix(PREFIX)
        users = social_users()
        if key.startswith(PREFIX) and number.isdecimal() and int(number) < len(users):
            return groups[users[int(number)][0] % len(groups)]
        return super().partition(key, groups)

    @command
    def follow(self, at: At, follower: Key, author: Key) -> Generator[list[Post], dict[str, list[Post]], bool]:
        """Begins to follow an author, whose last posts the follower sees as well; returns whether that is new."""
        mine = [post for post in self.posts if post[0] == author] if at.owns(author) else []
        given = yield mine
        is_new = False
        if at.owns(author):
            is_new = _add(self.followers.setdefault(author, []), follower)
        if at.owns(follower):
            is_new = _add(self.followed.setdefault(follower, []), author)
            for posts in given.values():
                self.posts += [(name, number, text) for name, number, text in posts if not self._has(name, number)]
        return is_new

    @command
    def unfollow(self, at: At, follower: Key, author: Key) -> bool:
        """Ends following; returns whether the follower did."""
        did = False
        if at.owns(author):
            did = _remove(self.followers.get(author, []), follower)
        if at.owns(follower):
            did = _remove(self.followed.get(follower, []), author)
        return did

    @command
    def post(self, at: At, author: Key, followers: list[Key], text: str) -> Generator[int, dict[str, int], bool]:
        """Posts to all followers, if the caller names them all; returns whether it did."""
        number = 0
        if at.owns(author) and self.followers.get(author, []) == sorted(followers):
            number = self.counts.get(author, 0) + 1
        votes = yield number
        number = max(votes.values())
        if number == 0:
            return False
        if at.owns(author):
            self.counts[author] = number
        self.posts.append((author, number, text))
        own = [post for post in self.posts if post[0] == author]
        if len(own) > KEPT:
            self.posts.remove(own[0])
        return True

    @query
    def followers_of(self, author: Key) -> list[str]:
        """Who follows a user."""
        return self.followers.get(author, [])

    @query
    def timeline(self, user: Key) -> list[Post]:
        """The last posts of those whom a user follows, in the order of the user's group."""
        followed = self.followed.get(user, [])
        return [post for post in self.posts if post[0] in followed]

    def _has(self, author: str, number: int) -> bool:
        return any(post[0] == author and post[1] == number for post in self.posts)


def _add(names: list[str], name: str) -> bool:
    if name in names:
        return False
    names.append(name)
    names.sort()
    return True


def _remove(names: list[str], name: str) -> bool:
    if name not in names:
        return False
    names.remove(name)
    return True


async def publish(network: Any, author: str, text: str, attempts: int = 20) -> bool:
    """Posts through a stub of the service to whoever follows the author; False if followers changed at each attempt."""
    ask: Callable[..., Awaitable[Any]] = network.followers_of
    for _ in range(attempts):
        followers = (await ask(author)).value
        if (await network.post(author, followers, text)).value:
            return True
    return False


def find_disagreement(services: Mapping[str, SocialNetwork]) -> str | None:
    """An invariant: each author's posts are in the author's order everywhere, and followers are known at both ends."""
    for group, service in services.items():
        latest: dict[str, int] = {}
        for author, number, _ in service.posts:
            if number <= latest.get(author, 0):
                return f"{group} has post {number} of {author} behind {latest[author]}"
            latest[author] = number
    following = {
        (user, author) for one in services.values() for user, names in one.followed.items() for author in names
    }
    followed = {
        (user, author) for one in services.values() for author, names in one.followers.items() for user in names
    }
    if following != followed:
        return f"one end only knows that {sorted(following ^ followed)[0]} follow each other"
    return None


async def work(client: Any) -> None:
    """One round of a client, which is a user: follows, unfollows, posts and reads at random."""
    network, random = client.service(SocialNetwork), client.random
    me = f"{PREFIX}{client.number}"
    for _ in range(STEPS):
        author = f"{PREFIX}{(client.number + random.randint(1, USERS - 1)) % USERS}"
        if random.random() < 0.3:
            await network.unfollow(me, author)
            assert me not in (await network.followers_of(author)).value, f"{me} follows {author} after the end"
        else:
            await network.follow(me, author)
            assert me in (await network.followers_of(author)).value, f"{me} does not follow {author}"
        assert await publish(network, me, f"a post of {me}"), f"followers of {me} changed too often"
        latest: dict[str, int] = {}
        for name, number, _text in (await network.timeline(me)).value:
            assert number > latest.get(name, 0), f"post {number} of {name} is behind {latest[name]}"
            latest[name] = number
