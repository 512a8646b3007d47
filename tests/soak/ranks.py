"""`make soak-ranks`, see `rank_soak`. Ranks import this file again: it imports nothing large."""

if __name__ == "__main__":
    from soak.rank_soak import main

    main()
